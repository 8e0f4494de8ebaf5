/** Streams an answer into a message. */

import { ApiError, capitalised, events, request } from "../api";
import type { McpCall, Message, ScoredToken, Timings, ToolCall, Usage } from "../conversation";

interface WireToken {
  token: string;
  logprob: number;
  top_logprobs: { token: string; logprob: number }[];
}

interface ToolCallDelta {
  index: number;
  id?: string;
  function?: { name?: string; arguments?: string };
}

interface Chunk {
  model?: string;
  choices: {
    delta: {
      content?: string | null;
      reasoning_content?: string | null;
      tool_calls?: ToolCallDelta[];
      mcp_calls?: McpCall[];
    };
    logprobs?: { content: WireToken[] | null } | null;
    finish_reason: string | null;
  }[];
  usage?: Usage | null;
  timings?: Timings;
}

/** Fills `message`, and calls `onChange` after each part. Errors become `message.error`. */
export async function generate(
  body: unknown,
  message: Message,
  signal: AbortSignal,
  onChange: () => void,
): Promise<void> {
  try {
    const response = await request("POST", "v1/chat/completions", body, signal);
    for await (const chunk of events<Chunk>(response)) {
      add(message, chunk);
      onChange();
    }
    message.finish ??= "abort";
  } catch (error) {
    if (signal.aborted) message.finish = "stopped";
    else message.error = sentence(error);
  }
  onChange();
}

export function sentence(error: unknown): string {
  if (!(error instanceof Error)) return String(error);
  const retry =
    error instanceof ApiError && error.retryAfter ? ` Try again in ${error.retryAfter} s.` : "";
  const text = capitalised(error.message);
  return `${text}${/[.!?]$/.test(text) ? "" : "."}${retry}`;
}

function add(message: Message, chunk: Chunk): void {
  if (chunk.model) message.model = chunk.model;
  if (chunk.usage) message.usage = chunk.usage;
  if (chunk.timings) message.timings = chunk.timings;
  const choice = chunk.choices[0];
  if (!choice) return;
  message.text += choice.delta.content ?? "";
  if (choice.delta.reasoning_content)
    message.reasoning = (message.reasoning ?? "") + choice.delta.reasoning_content;
  for (const call of choice.delta.tool_calls ?? []) addCall((message.toolCalls ??= []), call);
  if (choice.delta.mcp_calls?.length) (message.mcpCalls ??= []).push(...choice.delta.mcp_calls);
  if (choice.logprobs?.content?.length)
    (message.tokens ??= []).push(...choice.logprobs.content.map(scored));
  if (choice.finish_reason) message.finish = choice.finish_reason;
}

function addCall(calls: ToolCall[], delta: ToolCallDelta): void {
  const call = (calls[delta.index] ??= {
    id: "",
    type: "function",
    function: { name: "", arguments: "" },
  });
  if (delta.id) call.id = delta.id;
  call.function.name += delta.function?.name ?? "";
  call.function.arguments += delta.function?.arguments ?? "";
}

function scored({ token, logprob, top_logprobs }: WireToken): ScoredToken {
  return { token, logprob, top: top_logprobs.map(({ token, logprob }) => ({ token, logprob })) };
}
