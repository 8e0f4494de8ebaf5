/**
 * A conversation is a tree of messages: editing or regenerating adds a sibling, and `leaf` selects
 * a branch.
 */

import type { Settings } from "./settings";

export interface ToolCall {
  id: string;
  type: "function";
  function: { name: string; arguments: string };
}

/** A call that the server made, of a tool of an MCP server. */
export interface McpCall {
  id: string;
  server_label: string;
  name: string;
  arguments: string;
  output: string | null;
  error: string | null;
}

/** A token of an answer with its alternatives. */
export interface ScoredToken {
  token: string;
  logprob: number;
  top: { token: string; logprob: number }[];
}

export interface CacheMiss {
  reason: string;
  position: number;
  text: string;
  spoiler: string | null;
}

/** `usage.lanner` and the other figures of an answer. */
export interface Usage {
  prompt_tokens: number;
  completion_tokens: number;
  prompt_tokens_details?: { cached_tokens: number };
  completion_tokens_details?: { reasoning_tokens: number };
  lanner?: {
    cache: { source: string | null; cached_tokens: number; miss: CacheMiss | null };
    speculation: {
      drafted: number;
      accepted: number;
      by_drafter: Record<string, { drafted: number; accepted: number }>;
    };
    lossy?: string[];
  };
}

export interface Timings {
  prompt_ms: number;
  prompt_per_second: number | null;
  predicted_ms: number;
  predicted_per_second: number | null;
}

export interface Message {
  id: string;
  /** Null at the root. */
  parent: string | null;
  role: "user" | "assistant" | "tool";
  text: string;
  created: number;
  /** Pictures as data URIs, before the text. */
  images?: string[];
  reasoning?: string;
  /** Whether the settings made the answer JSON. */
  isJson?: boolean;
  toolCalls?: ToolCall[];
  /** Made by the server before and between the text. */
  mcpCalls?: McpCall[];
  /** Of a tool's result. */
  toolCallId?: string;
  tokens?: ScoredToken[];
  model?: string;
  finish?: string;
  error?: string;
  usage?: Usage;
  timings?: Timings;
}

export interface Conversation {
  id: string;
  title: string;
  created: number;
  updated: number;
  leaf: string | null;
  messages: Record<string, Message>;
  settings: Settings;
}

const LONGEST_TITLE = 60;

export function newConversation(settings: Settings): Conversation {
  const now = Date.now();
  return {
    id: newId(),
    title: "New conversation",
    created: now,
    updated: now,
    leaf: null,
    messages: {},
    settings,
  };
}

/** `crypto.randomUUID` needs a secure origin, which a server on the local network is not. */
export function newId(): string {
  return Array.from(crypto.getRandomValues(new Uint8Array(12)), byte =>
    byte.toString(16).padStart(2, "0"),
  ).join("");
}

/** Adds a message after `parent` and selects its branch. */
export function append(
  conversation: Conversation,
  parent: string | null,
  fields: Pick<Message, "role" | "text"> & Partial<Message>,
): Message {
  const message: Message = { id: newId(), parent, created: Date.now(), ...fields };
  conversation.messages[message.id] = message;
  conversation.leaf = message.id;
  conversation.updated = message.created;
  if (message.role === "user" && parent === null)
    conversation.title = titleOf(message.text || (message.images?.length ? "Picture" : ""));
  return message;
}

function titleOf(text: string): string {
  const line = text.trim().split("\n")[0]?.trim() ?? "";
  return line.length > LONGEST_TITLE
    ? `${line.slice(0, LONGEST_TITLE - 1)}…`
    : line || "New conversation";
}

/** The messages from the root to the selected leaf. */
export function branch(conversation: Conversation, leaf = conversation.leaf): Message[] {
  const path: Message[] = [];
  const seen = new Set<string>();
  for (let id = leaf; id !== null && !seen.has(id);) {
    const message: Message | undefined = conversation.messages[id];
    if (!message) break;
    seen.add(id);
    path.push(message);
    id = message.parent;
  }
  return path.reverse();
}

/** The messages with the same parent, oldest first. */
export function siblings(conversation: Conversation, message: Message): Message[] {
  return children(conversation, message.parent);
}

function children(conversation: Conversation, parent: string | null): Message[] {
  const all = Object.values(conversation.messages).filter(message => message.parent === parent);
  return all.sort((a, b) => a.created - b.created || (a.id < b.id ? -1 : 1));
}

/** Selects the branch of `message`, down its latest messages. */
export function select(conversation: Conversation, message: Message): void {
  let leaf = message;
  const seen = new Set<string>();
  while (!seen.has(leaf.id)) {
    seen.add(leaf.id);
    leaf = children(conversation, leaf.id).at(-1) ?? leaf;
  }
  conversation.leaf = leaf.id;
}
