/** The list of conversations: search, opening, deletion, export and import. */

import { branch, type Conversation } from "../conversation";
import { byId, confirmed, download, el, iconButton, notify, replace } from "../dom";
import { day } from "../format";
import type { ConversationStore, Summary } from "../storage";
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
    if (!store.isPersistent)
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
    const found = query ? await this.store.search(query) : await this.store.list();
    // A later search may have been faster.
    if (query !== this.search.value.trim()) return;
    const groups = new Map<string, Summary[]>();
    for (const one of found) {
      const name = query ? `${found.length} found` : day(one.updated);
      groups.set(name, [...(groups.get(name) ?? []), one]);
    }
    const sections = [...groups].map(([name, all]) =>
      el("section", {}, el("h2", {}, name), el("ul", {}, ...all.map(one => this.row(one)))),
    );
    replace(
      this.list,
      ...(sections.length
        ? sections
        : [
            el(
              "p",
              { class: "hint" },
              query ? "No conversation has these words." : "No conversations yet.",
            ),
          ]),
    );
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
    await this.store.remove(id);
    this.actions.forget(id);
    await this.refresh();
  }

  private async exportAll(): Promise<void> {
    download("lanner-conversations.json", "application/json", toJson(await this.store.all()));
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
