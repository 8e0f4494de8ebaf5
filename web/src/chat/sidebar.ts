/** The list of conversations: search, opening, deletion, export and import. */

import { branch, type Conversation } from "../conversation";
import { byId, confirmed, download, el, iconButton, notify, replace } from "../dom";
import { day } from "../format";
import type { ConversationStore, Listing, Summary } from "../storage";
import { openBrowserStore } from "../storage-browser";
import { fromJson, toJson, toMarkdown } from "../transfer";
import { sentence } from "./generate";

export interface SidebarActions {
  open(id: string): void;
  startNew(): void;
  /** Called after a conversation was deleted. */
  forget(id: string): void;
  current(): Conversation;
}

export class Sidebar {
  private readonly search = byId<HTMLInputElement>("search");
  private readonly list = byId("conversations");

  constructor(
    private readonly store: ConversationStore,
    private readonly actions: SidebarActions,
  ) {
    this.search.addEventListener("input", () => void this.refresh());
    byId("new").addEventListener("click", () => actions.startNew());
    byId("export-all").addEventListener("click", () => void this.exportAll());
    byId("export-markdown").addEventListener("click", () => this.exportMarkdown());
    const file = byId<HTMLInputElement>("import-file");
    byId("import").addEventListener("click", () => file.click());
    file.addEventListener("change", () => void this.importFile(file));
    if (store.place === "server") void this.offerMove();
    if (store.place === "tab")
      notify(
        "This browser keeps no data for this page: conversations are lost when the tab is closed.",
        "error",
      );
  }

  focusSearch(): void {
    this.search.focus();
    this.search.select();
  }

  async refresh(): Promise<void> {
    const query = this.search.value.trim();
    const part = await this.part(query);
    // A later search may have been faster.
    if (query === this.search.value.trim()) this.draw(query, part.items, part.next);
  }

  private part(query: string, after?: string): Promise<Listing> {
    return query ? this.store.search(query, after) : this.store.list(after);
  }

  private draw(query: string, found: Summary[], next: string | null): void {
    const groups = new Map<string, Summary[]>();
    for (const one of found) {
      const name = query ? `${found.length}${next ? " and more" : ""} found` : day(one.updated);
      groups.set(name, [...(groups.get(name) ?? []), one]);
    }
    const sections = [...groups].map(([name, all]) =>
      el("section", {}, el("h2", {}, name), el("ul", {}, ...all.map(one => this.row(one)))),
    );
    const none = query ? "No conversation has these words." : "No conversations yet.";
    const more = async (after: string) => {
      const part = await this.part(query, after);
      if (query === this.search.value.trim()) this.draw(query, [...found, ...part.items], part.next);
    };
    replace(
      this.list,
      ...(sections.length ? sections : [el("p", { class: "hint" }, none)]),
      next && el("button", { type: "button", id: "more", onclick: () => void more(next) }, "More"),
    );
  }

  /** Conversations that this browser kept while the server had no store. */
  private async offerMove(): Promise<void> {
    const browser = await openBrowserStore();
    const left = (await browser.list()).items.length;
    if (left === 0) return;
    const move = async () => {
      button.disabled = true;
      try {
        for await (const conversation of browser.all()) {
          await this.store.write(conversation);
          await browser.remove(conversation.id);
        }
        button.remove();
      } catch (error) {
        button.disabled = false;
        notify(sentence(error), "error");
      }
      await this.refresh();
    };
    const text = `Move ${left === 1 ? "a conversation" : `${left} conversations`} of this browser to the server`;
    const button = el("button", { type: "button", id: "move", onclick: () => void move() }, text);
    this.list.before(button);
  }

  private row({ id, title, snippet }: Summary): HTMLElement {
    const isCurrent = id === this.actions.current().id;
    const open = el(
      "button",
      {
        type: "button",
        class: "conversation",
        "aria-current": isCurrent ? "true" : null,
        onclick: () => this.actions.open(id),
      },
      el("span", {}, title),
      snippet ? el("small", {}, snippet) : null,
    );
    return el(
      "li",
      {},
      open,
      iconButton("trash", `Delete ${title}`, () => this.remove(id, title)),
    );
  }

  private async remove(id: string, title: string): Promise<void> {
    if (!(await confirmed(`Delete “${title}”?`, "Delete"))) return;
    try {
      await this.store.remove(id);
    } catch (error) {
      return notify(sentence(error), "error");
    }
    this.actions.forget(id);
    await this.refresh();
  }

  private async exportAll(): Promise<void> {
    const all: Conversation[] = [];
    try {
      for await (const conversation of this.store.all()) all.push(conversation);
    } catch (error) {
      return notify(sentence(error), "error");
    }
    download("lanner-conversations.json", "application/json", toJson(all));
  }

  private exportMarkdown(): void {
    const current = this.actions.current();
    if (!branch(current).length) return notify("This conversation has no messages to export.");
    const name =
      current.title
        .replace(/[^\p{L}\p{N}]+/gu, "-")
        .replace(/^-|-$/g, "")
        .toLowerCase() || "conversation";
    download(`${name}.md`, "text/markdown", toMarkdown(current));
  }

  private async importFile(input: HTMLInputElement): Promise<void> {
    const file = input.files?.[0];
    input.value = "";
    if (!file) return;
    try {
      const conversations = fromJson(await file.text());
      for (const conversation of conversations) await this.store.write(conversation);
      notify(
        conversations.length === 1
          ? "Imported one conversation."
          : `Imported ${conversations.length} conversations.`,
      );
    } catch (error) {
      notify(sentence(error), "error");
    }
    await this.refresh();
  }
}
