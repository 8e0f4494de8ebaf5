/** Where conversations are kept. The rest of the page knows the interface only. */

import type { Conversation } from "./conversation";
import { openBrowserStore } from "./storage-browser";
import { openServerStore } from "./storage-server";

export interface Summary {
  id: string;
  title: string;
  updated: number;
  /** The text around a match of a search. */
  snippet?: string;
}

/** A part of a list. */
export interface Listing {
  items: Summary[];
  /** Where the next part begins; null: this is the last one. */
  next: string | null;
}

export interface ConversationStore {
  /** `tab`: conversations are lost when it is closed. */
  readonly place: "server" | "browser" | "tab";
  /** Latest first. */
  list(after?: string): Promise<Listing>;
  /** The conversations that have all words of `query`, latest first. */
  search(query: string, after?: string): Promise<Listing>;
  read(id: string): Promise<Conversation | undefined>;
  /** Messages that another tab has added meanwhile are kept. */
  write(conversation: Conversation): Promise<void>;
  remove(id: string): Promise<void>;
  /** Latest first, one at a time. */
  all(): AsyncIterable<Conversation>;
}

/** The server if it has a store, else the browser. */
export async function openStore(): Promise<ConversationStore> {
  return (await openServerStore()) ?? (await openBrowserStore());
}
