/** Conversations in the browser. */

import type { Conversation } from "./conversation";
import type { ConversationStore, Listing, Summary } from "./storage";

const DATABASE = "lanner";
const CONVERSATIONS = "conversations";
const SNIPPET = 40;

/** IndexedDB, or memory where the browser denies it, as in some private windows. */
export async function openBrowserStore(): Promise<ConversationStore> {
  try {
    return new IndexedDbStore(await open());
  } catch {
    return new MemoryStore();
  }
}

function open(): Promise<IDBDatabase> {
  const opening = indexedDB.open(DATABASE, 1);
  opening.onupgradeneeded = () => {
    opening.result
      .createObjectStore(CONVERSATIONS, { keyPath: "id" })
      .createIndex("updated", "updated");
  };
  return result(opening);
}

function result<T>(pending: IDBRequest<T>): Promise<T> {
  return new Promise((resolve, reject) => {
    pending.onsuccess = () => resolve(pending.result);
    pending.onerror = () => reject(pending.error ?? new Error("the browser's database failed"));
  });
}

class IndexedDbStore implements ConversationStore {
  readonly place = "browser";

  constructor(private readonly database: IDBDatabase) {
    // Another tab with a newer page wants to change the layout.
    database.onversionchange = () => database.close();
  }

  async list(): Promise<Listing> {
    return whole(await this.scan(conversation => summary(conversation)));
  }

  async search(query: string): Promise<Listing> {
    return whole(await this.scan(conversation => match(conversation, query)));
  }

  async read(id: string): Promise<Conversation | undefined> {
    return result(this.store("readonly").get(id) as IDBRequest<Conversation | undefined>);
  }

  async write(conversation: Conversation): Promise<void> {
    const store = this.store("readwrite");
    const stored = await result(store.get(conversation.id) as IDBRequest<Conversation | undefined>);
    await result(
      store.put({ ...conversation, messages: { ...stored?.messages, ...conversation.messages } }),
    );
  }

  async remove(id: string): Promise<void> {
    await result(this.store("readwrite").delete(id));
  }

  async *all(): AsyncGenerator<Conversation> {
    // A transaction ends while another thing is awaited, so each conversation has its own.
    for (const { id } of (await this.list()).items) {
      const conversation = await this.read(id);
      if (conversation) yield conversation;
    }
  }

  private store(mode: IDBTransactionMode): IDBObjectStore {
    return this.database.transaction(CONVERSATIONS, mode).objectStore(CONVERSATIONS);
  }

  /** One conversation in memory at a time. */
  private scan<T>(pick: (conversation: Conversation) => T | undefined): Promise<T[]> {
    const found: T[] = [];
    const cursor = this.store("readonly").index("updated").openCursor(null, "prev");
    return new Promise((resolve, reject) => {
      cursor.onerror = () => reject(cursor.error ?? new Error("the browser's database failed"));
      cursor.onsuccess = () => {
        const at = cursor.result;
        if (!at) return resolve(found);
        const one = pick(at.value as Conversation);
        if (one !== undefined) found.push(one);
        at.continue();
      };
    });
  }
}

class MemoryStore implements ConversationStore {
  readonly place = "tab";
  private readonly conversations = new Map<string, Conversation>();

  async list(): Promise<Listing> {
    return whole(this.sorted().map(summary));
  }

  async search(query: string): Promise<Listing> {
    return whole(this.sorted().flatMap(conversation => match(conversation, query) ?? []));
  }

  async read(id: string): Promise<Conversation | undefined> {
    return this.conversations.get(id);
  }

  async write(conversation: Conversation): Promise<void> {
    this.conversations.set(conversation.id, conversation);
  }

  async remove(id: string): Promise<void> {
    this.conversations.delete(id);
  }

  async *all(): AsyncGenerator<Conversation> {
    yield* this.sorted();
  }

  private sorted(): Conversation[] {
    return [...this.conversations.values()].sort((a, b) => b.updated - a.updated);
  }
}

/** A list in one part. */
function whole(items: Summary[]): Listing {
  return { items, next: null };
}

function summary({ id, title, updated }: Conversation): Summary {
  return { id, title, updated };
}

function match(conversation: Conversation, query: string): Summary | undefined {
  const words = query
    .toLowerCase()
    .split(/\s+/)
    .filter(word => word !== "");
  const texts = [
    conversation.title,
    ...Object.values(conversation.messages).map(message => message.text),
  ];
  const all = texts.join("\n").toLowerCase();
  if (!words.every(word => all.includes(word))) return undefined;
  return { ...summary(conversation), snippet: snippet(texts.slice(1), words[0] ?? "") };
}

function snippet(texts: string[], word: string): string | undefined {
  for (const text of texts) {
    const at = text.toLowerCase().indexOf(word);
    if (at < 0) continue;
    const [from, to] = [
      Math.max(0, at - SNIPPET),
      Math.min(text.length, at + word.length + SNIPPET),
    ];
    return `${from > 0 ? "…" : ""}${text.slice(from, to)}${to < text.length ? "…" : ""}`.replace(
      /\s+/g,
      " ",
    );
  }
  return undefined;
}
