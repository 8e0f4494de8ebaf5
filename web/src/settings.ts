/** What a conversation asks of the server besides its messages, and the request that it makes. */

import type { Message } from "./conversation";

export interface Settings {
  /** Empty: the server's default model. */
  model: string;
  system: string;
  temperature: number | null;
  top_p: number | null;
  top_k: number | null;
  min_p: number | null;
  repetition_penalty: number | null;
  presence_penalty: number | null;
  frequency_penalty: number | null;
  max_tokens: number | null;
  seed: number | null;
  /** Stop strings, one a line. */
  stop: string;
  thinking: "default" | "on" | "off";
  /** Empty: the server's; else `auto`, `off`, a drafter, or `self:lossy`. */
  speculation: string;
  depth: number | null;
  format: "text" | "json_object" | "json_schema" | "regex";
  schema: string;
  regex: string;
  /** OpenAI's list of tools, as JSON. */
  tools: string;
  tool_choice: "auto" | "none" | "required";
  /** Labels of MCP servers whose tools the model may call. */
  mcp: string[];
  /** Whether the user is asked before each of their calls. */
  mcp_approval: "always" | "never";
  logprobs: boolean;
  priority: "normal" | "interactive" | "background";
}

export const NUMBERS = [
  "temperature",
  "top_p",
  "top_k",
  "min_p",
  "repetition_penalty",
  "presence_penalty",
  "frequency_penalty",
  "max_tokens",
  "seed",
] as const;
/** Alternatives of each token. */
const TOP_LOGPROBS = 5;
const KEY = "lanner-settings";

export function defaults(): Settings {
  return {
    model: "",
    system: "",
    temperature: null,
    top_p: null,
    top_k: null,
    min_p: null,
    repetition_penalty: null,
    presence_penalty: null,
    frequency_penalty: null,
    max_tokens: null,
    seed: null,
    stop: "",
    thinking: "default",
    speculation: "",
    depth: null,
    format: "text",
    schema: "",
    regex: "",
    tools: "",
    tool_choice: "auto",
    mcp: [],
    mcp_approval: "always",
    logprobs: false,
    priority: "normal",
  };
}

/** Settings of the last conversation, which a new one starts with. */
export function remembered(): Settings {
  try {
    return {
      ...defaults(),
      ...(JSON.parse(localStorage.getItem(KEY) ?? "{}") as Partial<Settings>),
    };
  } catch {
    return defaults();
  }
}

export function remember(settings: Settings): void {
  try {
    localStorage.setItem(KEY, JSON.stringify(settings));
  } catch {
    // A full or forbidden store: new conversations start with the defaults.
  }
}

type Body = Record<string, unknown>;

/** What the user says to a call of an MCP tool. */
export interface McpApproval {
  id: string;
  approve: boolean;
}

/**
 * The body of `POST /v1/chat/completions`. Throws a sentence about a setting that cannot be sent.
 */
export function requestBody(
  settings: Settings,
  messages: Message[],
  approvals: McpApproval[] = [],
): Body {
  const body: Body = {
    messages: [...systemMessage(settings), ...messages.filter(hasContent).map(wireMessage)],
    stream: true,
    stream_options: { include_usage: true },
  };
  if (settings.model) body.model = settings.model;
  for (const name of NUMBERS) {
    if (settings[name] !== null) body[name] = settings[name];
  }
  const stop = settings.stop.split("\n").filter(line => line !== "");
  if (stop.length) body.stop = stop;
  if (settings.thinking !== "default") body.enable_thinking = settings.thinking === "on";
  if (settings.priority !== "normal") body.priority = settings.priority;
  if (settings.logprobs) Object.assign(body, { logprobs: true, top_logprobs: TOP_LOGPROBS });
  if (approvals.length) body.mcp_approvals = approvals;
  if (settings.speculation) body.speculation = speculation(settings);
  return Object.assign(body, format(settings), tools(settings));
}

function systemMessage(settings: Settings): Body[] {
  return settings.system.trim() ? [{ role: "system", content: settings.system }] : [];
}

/** An answer that failed or was stopped at once says nothing that the model could go on from. */
function hasContent(message: Message): boolean {
  const calls = (message.toolCalls?.length ?? 0) + (message.mcpCalls?.length ?? 0);
  return message.role !== "assistant" || message.text !== "" || calls > 0;
}

function wireMessage(message: Message): Body {
  if (message.role === "tool")
    return { role: "tool", tool_call_id: message.toolCallId, content: message.text };
  const body: Body = { role: message.role, content: content(message) };
  if (message.toolCalls?.length) body.tool_calls = message.toolCalls;
  if (message.mcpCalls?.length) body.mcp_calls = message.mcpCalls;
  return body;
}

function content({ images, text }: Message): unknown {
  if (!images?.length) return text;
  const pictures = images.map(url => ({ type: "image_url", image_url: { url } }));
  return text ? [...pictures, { type: "text", text }] : pictures;
}

function speculation(settings: Settings): unknown {
  if (settings.speculation === "auto" || settings.speculation === "off")
    return settings.speculation;
  if (settings.speculation === "self:lossy") return { drafter: "self", lossy: true };
  return {
    drafter: settings.speculation,
    ...(settings.depth === null ? {} : { depth: settings.depth }),
  };
}

function format(settings: Settings): Body {
  switch (settings.format) {
    case "text":
      return {};
    case "json_object":
      return { response_format: { type: "json_object" } };
    case "json_schema":
      return {
        response_format: {
          type: "json_schema",
          json_schema: { name: "answer", schema: json(settings.schema, "JSON schema") },
        },
      };
    case "regex":
      return { guided_regex: settings.regex };
  }
}

function tools(settings: Settings): Body {
  const servers = settings.mcp.map(label => ({
    type: "mcp",
    server_label: label,
    require_approval: settings.mcp_approval,
  }));
  const all = [...functions(settings), ...servers];
  return all.length ? { tools: all, tool_choice: settings.tool_choice } : {};
}

function functions(settings: Settings): unknown[] {
  if (!settings.tools.trim()) return [];
  const list = json(settings.tools, "list of tools");
  if (!Array.isArray(list))
    throw new Error("The list of tools in the settings must be a JSON array.");
  return list.map((tool: Body) =>
    "function" in tool ? tool : { type: "function", function: tool },
  );
}

function json(text: string, name: string): unknown {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Error(`The ${name} in the settings is not valid JSON: ${(error as Error).message}.`);
  }
}
