/** Conversations on the server, which belong to the API key that made them. */

import { ApiError, getJson, request } from "./api";
import type { Conversation, Message } from "./conversation";
import { defaults } from "./settings";
import type { ConversationStore, Listing } from "./storage";

const PATH = "v1/history";

interface Stats {
  store?: { conversations: boolean };
}

/** Null if the server keeps no conversations, or does not answer. */
export async function openServerStore(): Promise<ConversationStore | null> {
  try {
    const { store } = await getJson<Stats>("v1/stats");
    return store?.conversations ? new ServerStore() : null;
  } catch {
    return null;
  }
}

class ServerStore implements ConversationStore {
  readonly place = "server";
  /** Messages as the server has them, by conversation: others need not be sent. */
  private readonly sent = new Map<string, Map<string, string>>();

  async list(after?: string): Promise<Listing> {
    return this.page({ after });
  }

  async search(query: string, after?: string): Promise<Listing> {
    return this.page({ search: query, after });
  }

  async read(id: string): Promise<Conversation | undefined> {
    try {
      const stored = await getJson<Conversation>(`${PATH}/${encodeURIComponent(id)}`);
      // Other programs know only some of the settings.
      const conversation = { ...stored, settings: { ...defaults(), ...stored.settings } };
      const { messages } = conversation;
      this.sent.set(id, new Map(Object.values(messages).map(one => [one.id, JSON.stringify(one)])));
      return conversation;
    } catch (error) {
      if (error instanceof ApiError && error.status === 404) return undefined;
      throw error;
    }
  }

  async write(conversation: Conversation): Promise<void> {
    const { id, title, created, updated, leaf, settings } = conversation;
    const known = this.sent.get(id) ?? new Map<string, string>();
    const messages: Record<string, Message> = {};
    const texts = new Map<string, string>();
    for (const message of Object.values(conversation.messages)) {
      const text = JSON.stringify(message);
      if (known.get(message.id) === text) continue;
      messages[message.id] = message;
      texts.set(message.id, text);
    }
    const body = { title, created, updated, leaf, settings, messages };
    await request("PUT", `${PATH}/${encodeURIComponent(id)}`, body);
    this.sent.set(id, new Map([...known, ...texts]));
  }

  async remove(id: string): Promise<void> {
    await request("DELETE", `${PATH}/${encodeURIComponent(id)}`);
    this.sent.delete(id);
  }

  async *all(): AsyncGenerator<Conversation> {
    let after: string | undefined;
    do {
      const { items, next } = await this.list(after);
      for (const { id } of items) {
        const conversation = await this.read(id);
        if (conversation) yield conversation;
      }
      after = next ?? undefined;
    } while (after !== undefined);
  }

  private async page(parameters: Record<string, string | undefined>): Promise<Listing> {
    const query = new URLSearchParams();
    for (const [name, value] of Object.entries(parameters)) if (value) query.set(name, value);
    const { data, next } = await getJson<{ data: Listing["items"]; next: string | null }>(
      `${PATH}?${query}`,
    );
    return { items: data, next };
  }
}
