/** The conversation: sending, stopping, editing, regenerating and branches. */

import {
  append,
  branch,
  newConversation,
  select,
  siblings,
  type Conversation,
  type Message,
} from "../conversation";
import { announce, byId, el, notify, arrange } from "../dom";
import { remember, remembered, requestBody, type McpApproval } from "../settings";
import type { ConversationStore } from "../storage";
import { Composer } from "./composer";
import { generate, sentence } from "./generate";
import { MessageView, type MessageActions, type MessageContext } from "./message";

/** Distance from the end within which the view follows an answer. */
const FOLLOWS = 80;
const EXAMPLES = [
  "Explain what a prefix cache does.",
  "Write a function that reverses a list, in Rust.",
  "What is 17 + 25?",
];

const KEEPERS = {
  server: "the server keeps in a file of its user",
  browser: "only this browser keeps",
  tab: "end with this tab",
};

/** An answer that is being generated. */
interface Running {
  conversation: Conversation;
  message: Message;
  controller: AbortController;
}

export class ChatView implements MessageActions {
  conversation: Conversation;
  private views = new Map<string, MessageView>();
  /** Answers being generated, by conversation. */
  private readonly running = new Map<string, Running>();
  private readonly forgotten = new Set<string>();
  private readonly composer: Composer;
  private readonly list = byId("messages");
  private readonly scroller = byId("scroller");

  constructor(
    private readonly store: ConversationStore,
    private readonly onSaved: () => void,
    private readonly onOpened: () => void,
  ) {
    this.conversation = newConversation(remembered());
    this.composer = new Composer(
      (text, images) => this.send(text, images),
      () => this.stop(),
    );
    this.draw();
  }

  async open(id: string): Promise<void> {
    // While its answer is being generated, a conversation is newer than in the store.
    let conversation = this.running.get(id)?.conversation;
    try {
      conversation ??= await this.store.read(id);
    } catch (error) {
      return notify(sentence(error), "error");
    }
    if (!conversation) return notify("This conversation does not exist any more.", "error");
    // It may have been deleted and imported again.
    this.forgotten.delete(id);
    this.show(conversation);
  }

  startNew(): void {
    this.show(newConversation(remembered()));
    this.composer.focus();
  }

  /** After a conversation has been deleted: its answer must not bring it back. */
  forget(id: string): void {
    this.forgotten.add(id);
    this.running.get(id)?.controller.abort();
    if (id === this.conversation.id) this.startNew();
  }

  private show(conversation: Conversation): void {
    this.conversation = conversation;
    this.draw();
    this.scroller.scrollTop = this.scroller.scrollHeight;
    this.onOpened();
  }

  settingsChanged(): void {
    remember(this.conversation.settings);
    if (this.conversation.leaf !== null) void this.save(this.conversation);
  }

  stop(): void {
    this.running.get(this.conversation.id)?.controller.abort();
  }

  /** One answer of a conversation at a time. */
  private isBusy(): boolean {
    const isBusy = this.running.has(this.conversation.id);
    if (isBusy) notify("Wait for the answer, or stop it first.", "error");
    return isBusy;
  }

  send(text: string, images: string[] = []): void {
    if (this.isBusy()) return;
    const fields = images.length ? { text, images } : { text };
    const message = append(this.conversation, this.conversation.leaf, { role: "user", ...fields });
    void this.answer(message);
  }

  edit(message: Message, text: string): void {
    if (this.isBusy()) return;
    const fields = message.images ? { text, images: message.images } : { text };
    void this.answer(append(this.conversation, message.parent, { role: "user", ...fields }));
  }

  regenerate(message: Message): void {
    if (this.isBusy()) return;
    const parent = message.parent === null ? undefined : this.conversation.messages[message.parent];
    if (parent) void this.answer(parent);
  }

  sendResults(message: Message, results: string[]): void {
    if (this.isBusy()) return;
    let last = message;
    results.forEach((text, i) => {
      last = append(this.conversation, last.id, {
        role: "tool",
        text,
        toolCallId: message.toolCalls?.[i]?.id,
      });
    });
    void this.answer(last);
  }

  approve(message: Message, approved: boolean[]): void {
    if (this.isBusy()) return;
    const approvals = (message.toolCalls ?? []).map((call, i) => ({
      id: call.id,
      approve: approved[i] ?? false,
    }));
    void this.answer(message, approvals);
  }

  showSibling(message: Message, step: number): void {
    const all = siblings(this.conversation, message);
    const other = all[all.indexOf(message) + step];
    if (!other) return;
    select(this.conversation, other);
    void this.save(this.conversation);
    this.draw();
    this.views
      .get(other.id)
      ?.node.querySelector<HTMLElement>(".siblings button:not(:disabled)")
      ?.focus();
  }

  /** Generates an answer to the branch that ends with `message`. */
  private async answer(message: Message, approvals: McpApproval[] = []): Promise<void> {
    const { conversation } = this;
    const isJson = conversation.settings.format.startsWith("json");
    const answer = append(conversation, message.id, { role: "assistant", text: "", isJson });
    const controller = new AbortController();
    this.running.set(conversation.id, { conversation, message: answer, controller });
    this.draw();
    this.scroller.scrollTop = this.scroller.scrollHeight;
    await this.save(conversation);
    await this.run(conversation, answer, controller, approvals);
    this.running.delete(conversation.id);
    conversation.updated = Date.now();
    await this.save(conversation);
    if (this.conversation !== conversation) return;
    this.draw();
    announce(answer.error ?? "The answer is complete.");
  }

  private async run(
    conversation: Conversation,
    answer: Message,
    controller: AbortController,
    approvals: McpApproval[],
  ): Promise<void> {
    let body: unknown;
    try {
      const messages = branch(conversation, answer.parent);
      body = requestBody(conversation.settings, messages, approvals);
    } catch (error) {
      answer.error = sentence(error);
      return;
    }
    await generate(body, answer, controller.signal, () => this.progress(answer));
  }

  private progress(answer: Message): void {
    const follows =
      this.scroller.scrollHeight - this.scroller.scrollTop - this.scroller.clientHeight < FOLLOWS;
    this.views.get(answer.id)?.update();
    if (follows)
      requestAnimationFrame(() => {
        this.scroller.scrollTop = this.scroller.scrollHeight;
      });
  }

  private async save(conversation: Conversation): Promise<void> {
    if (this.forgotten.has(conversation.id)) return;
    try {
      await this.store.write(conversation);
    } catch (error) {
      notify(`The conversation could not be saved: ${sentence(error)}`, "error");
    }
    this.onSaved();
  }

  /** Draws the selected branch; messages that stay keep their nodes. */
  private draw(): void {
    const messages = branch(this.conversation);
    const views = new Map<string, MessageView>();
    for (const message of messages) {
      const context = this.contextOf(message, message === messages.at(-1));
      const view = this.views.get(message.id) ?? new MessageView(message, context, this);
      view.update(context);
      views.set(message.id, view);
    }
    this.views = views;
    const nodes = [...views.values()].map(view => view.node);
    arrange(this.list, messages.length ? nodes : [this.welcome()]);
    this.composer.setRunning(this.running.has(this.conversation.id));
    document.title = messages.length ? `${this.conversation.title} · Lanner` : "Lanner";
  }

  private contextOf(message: Message, isLast: boolean): MessageContext {
    const all = siblings(this.conversation, message);
    return {
      isRunning: this.running.get(this.conversation.id)?.message === message,
      isLast,
      sibling: [all.indexOf(message), all.length],
    };
  }

  private welcome(): HTMLElement {
    const examples = EXAMPLES.map(text =>
      el("button", { type: "button", onclick: () => this.send(text) }, text),
    );
    return el(
      "div",
      { class: "welcome" },
      el("h2", {}, "What can this machine answer?"),
      el(
        "p",
        {},
        `Everything stays on it: the model, the answers, and these conversations, which ${KEEPERS[this.store.place]}.`,
      ),
      el("div", { class: "examples" }, ...examples),
    );
  }
}
