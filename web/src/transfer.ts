/** Conversations as files: JSON, which can be imported again, and Markdown, which people read. */

import { branch, type Conversation, type Message } from "./conversation";
import { defaults } from "./settings";

const FORMAT = "lanner-conversations";

export function toJson(conversations: Conversation[]): string {
  return JSON.stringify({ format: FORMAT, version: 1, conversations }, null, 2);
}

/** Throws a sentence about a file that is not one of these. */
export function fromJson(text: string): Conversation[] {
  let file: { format?: unknown; conversations?: unknown };
  try {
    file = JSON.parse(text) as typeof file;
  } catch {
    throw new Error("This file is not JSON; import a file that this page exported.");
  }
  if (file?.format !== FORMAT || !Array.isArray(file.conversations)) {
    throw new Error("This file has no conversations of this page; import a file that it exported.");
  }
  return file.conversations.map(checked);
}

/** Only known fields, with the types that the page relies on. */
function checked(value: unknown, index: number): Conversation {
  const given = (value ?? {}) as Partial<Conversation>;
  if (
    typeof given.id !== "string" ||
    typeof given.messages !== "object" ||
    given.messages === null
  ) {
    throw new Error(`Conversation ${index + 1} of this file has no id or no messages.`);
  }
  const messages = Object.values(given.messages).filter(isMessage);
  return {
    id: given.id,
    title: String(given.title ?? "Imported conversation"),
    created: Number(given.created) || Date.now(),
    updated: Number(given.updated) || Date.now(),
    leaf: typeof given.leaf === "string" ? given.leaf : (messages.at(-1)?.id ?? null),
    messages: Object.fromEntries(messages.map(message => [message.id, message])),
    settings: { ...defaults(), ...given.settings },
  };
}

function isMessage(value: unknown): value is Message {
  const message = value as Partial<Message> | null;
  return (
    typeof message?.id === "string" &&
    typeof message.text === "string" &&
    typeof message.created === "number" &&
    ["user", "assistant", "tool"].includes(message.role ?? "") &&
    (message.images === undefined || isTexts(message.images)) &&
    (message.parent === null || typeof message.parent === "string")
  );
}

function isTexts(value: unknown): boolean {
  return Array.isArray(value) && value.every(one => typeof one === "string");
}

const SPEAKERS = { user: "You", assistant: "Model", tool: "Tool" };

/** The selected branch. */
export function toMarkdown(conversation: Conversation): string {
  const parts = [`# ${conversation.title}`];
  if (conversation.settings.system.trim())
    parts.push("## System prompt", conversation.settings.system.trim());
  for (const message of branch(conversation)) {
    parts.push(`## ${SPEAKERS[message.role]}`);
    if (message.images?.length) parts.push(`(pictures: ${message.images.length})`);
    if (message.text) parts.push(message.text);
    for (const call of message.toolCalls ?? []) {
      parts.push(
        `\`\`\`json\n${JSON.stringify({ name: call.function.name, arguments: call.function.arguments })}\n\`\`\``,
      );
    }
  }
  return `${parts.join("\n\n")}\n`;
}
