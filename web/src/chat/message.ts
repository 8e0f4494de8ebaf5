/** One message of the conversation, updated in place while it streams. */

import type { McpCall, Message } from "../conversation";
import { arrange, copyText, el, icon, iconButton, replace } from "../dom";
import { codeNode, Markdown } from "../markdown/render";
import { figuresNode } from "./figures";
import { approvalNode, mcpCallsNode, needsApproval } from "./mcpcalls";
import { picturesNode } from "./pictures";
import { tokenView } from "./tokens";
import { toolCallsNode } from "./toolcalls";

export interface MessageActions {
  edit(message: Message, text: string): void;
  regenerate(message: Message): void;
  sendResults(message: Message, results: string[]): void;
  /** Whether each call of an MCP tool, in order, is approved. */
  approve(message: Message, approved: boolean[]): void;
  /** Shows the sibling `step` places on. */
  showSibling(message: Message, step: number): void;
}

export interface MessageContext {
  isRunning: boolean;
  /** The last message of the branch. */
  isLast: boolean;
  /** Position among its siblings, from 0, and their number. */
  sibling: [number, number];
}

const SPEAKERS = { user: "You", assistant: "Model", tool: "Tool result" };
const FINISHES: Record<string, string> = {
  length: "Cut off: the answer reached its maximum of tokens, or the end of the context.",
  abort: "Incomplete: the server gave up this answer.",
  stopped: "Stopped.",
};

export class MessageView {
  readonly node: HTMLElement;
  private readonly body = el("div", { class: "body" });
  private readonly footer = el("footer", {});
  private readonly markdown = new Markdown();
  private reasoning: { node: HTMLDetailsElement; markdown: Markdown } | null = null;
  private callsNode: { count: number; node: HTMLElement } | null = null;
  private showsTokens = false;
  private drawn = 0;

  constructor(
    private readonly message: Message,
    private context: MessageContext,
    private readonly actions: MessageActions,
  ) {
    const speaker = SPEAKERS[message.role];
    this.node = el(
      "article",
      { class: `message ${message.role}`, "aria-label": speaker, "data-id": message.id },
      el(
        "header",
        {},
        el("h2", {}, message.role === "assistant" ? message.model || speaker : speaker),
      ),
      this.body,
      this.footer,
    );
    this.draw();
  }

  /** Draws what has arrived, at most once a frame. */
  update(context = this.context): void {
    this.context = context;
    if (!this.drawn) this.drawn = requestAnimationFrame(() => this.draw());
  }

  private draw(): void {
    this.drawn = 0;
    const { message, context } = this;
    this.node.setAttribute("aria-busy", String(context.isRunning));
    if (message.role === "assistant") {
      this.node.querySelector("h2")!.textContent = message.model || "Model";
      this.drawAnswer();
    } else {
      replace(
        this.body,
        picturesNode(message.images),
        message.role === "user"
          ? el("div", { class: "plain" }, message.text)
          : codeNode(message.text, "text"),
      );
    }
    if (!context.isRunning) this.drawFooter();
    else replace(this.footer);
  }

  private drawAnswer(): void {
    const { message, context } = this;
    this.drawReasoning();
    const isEmpty = !message.text && !message.toolCalls?.length && !message.error;
    const calls = message.toolCalls ?? [];
    const asked = calls.filter(needsApproval);
    const parts = [
      this.reasoning?.node,
      message.mcpCalls?.length ? this.mcpCalls(message.mcpCalls) : null,
      message.text ? this.content() : null,
      asked.length ? approvalNode(asked, this.onDecision(calls.length === asked.length)) : null,
      calls.length > asked.length ? toolCallsNode(message, this.onResults()) : null,
      context.isRunning && isEmpty
        ? el(
            "p",
            { class: "waiting" },
            message.reasoning ? "Reasoning" : "Waiting for the first token",
          )
        : null,
      !context.isRunning && message.finish && FINISHES[message.finish]
        ? el("p", { class: "finish" }, FINISHES[message.finish]!)
        : null,
      message.error ? el("p", { class: "failure", role: "alert" }, message.error) : null,
    ];
    const wanted = parts.filter((part): part is HTMLElement => part instanceof Node);
    arrange(this.body, wanted);
  }

  private content(): HTMLElement {
    const { message } = this;
    if (this.showsTokens && message.tokens) return tokenView(message.tokens);
    if (message.isJson) return codeNode(message.text, "json");
    this.markdown.update(message.text);
    return this.markdown.node;
  }

  private drawReasoning(): void {
    const { message } = this;
    if (!message.reasoning) return;
    if (!this.reasoning) {
      const markdown = new Markdown();
      this.reasoning = {
        markdown,
        node: el("details", { class: "reasoning" }, el("summary", {}, "Reasoning"), markdown.node),
      };
    }
    this.reasoning.markdown.update(message.reasoning);
  }

  /** Calls that are shown already keep their nodes, so that opened ones stay open. */
  private mcpCalls(calls: McpCall[]): HTMLElement {
    if (this.callsNode?.count !== calls.length)
      this.callsNode = { count: calls.length, node: mcpCallsNode(calls) };
    return this.callsNode.node;
  }

  /** Calls of functions beside them get their results from the user, who then decides on both. */
  private onDecision(isAlone: boolean): ((approved: boolean[]) => void) | null {
    const { message, context } = this;
    return isAlone && context.isLast && !context.isRunning && message.finish === "tool_calls"
      ? approved => this.actions.approve(message, approved)
      : null;
  }

  private onResults(): ((results: string[]) => void) | null {
    const { message, context } = this;
    return context.isLast && !context.isRunning && message.finish === "tool_calls"
      ? results => this.actions.sendResults(message, results)
      : null;
  }

  private drawFooter(): void {
    const { message, actions } = this;
    const copy = iconButton("copy", "Copy message", () => copyText(message.text, copy));
    const buttons: HTMLElement[] = [copy];
    if (message.role === "user")
      buttons.push(iconButton("edit", "Edit message", () => this.edit()));
    if (message.role === "assistant")
      buttons.push(iconButton("again", "Regenerate answer", () => actions.regenerate(message)));
    if (message.tokens?.length) buttons.push(this.tokensButton());
    replace(
      this.footer,
      this.siblingsNode(),
      el("div", { class: "actions" }, ...buttons),
      figuresNode(message),
    );
  }

  private tokensButton(): HTMLElement {
    const button = iconButton("tokens", "Token probabilities", () => {
      this.showsTokens = !this.showsTokens;
      this.draw();
      this.node.querySelector<HTMLElement>("[aria-pressed]")?.focus();
    });
    button.setAttribute("aria-pressed", String(this.showsTokens));
    return button;
  }

  private siblingsNode(): HTMLElement | null {
    const [index, length] = this.context.sibling;
    if (length < 2) return null;
    const step = (name: "left" | "right", label: string, by: number) => {
      const button = iconButton(name, label, () => this.actions.showSibling(this.message, by));
      button.disabled = index + by < 0 || index + by >= length;
      return button;
    };
    return el(
      "div",
      { class: "siblings", role: "group", "aria-label": "Branches" },
      step("left", "Previous branch", -1),
      el("span", {}, `${index + 1} / ${length}`),
      step("right", "Next branch", 1),
    );
  }

  /** Replaces the text by a field; the old message stays as another branch. */
  private edit(): void {
    const field = el("textarea", {
      "aria-label": "Edit message",
      rows: Math.min(12, this.message.text.split("\n").length + 1),
    });
    field.value = this.message.text;
    const save = (event: Event) => {
      event.preventDefault();
      if (field.value.trim() || this.message.images?.length)
        this.actions.edit(this.message, field.value);
    };
    const form = el(
      "form",
      { class: "edit", onsubmit: save },
      field,
      el(
        "div",
        { class: "buttons" },
        el("button", { type: "button", onclick: () => this.draw() }, "Cancel"),
        el("button", { class: "primary", type: "submit" }, icon("send"), "Send as a new branch"),
      ),
    );
    field.addEventListener("keydown", event => {
      if (event.key === "Escape") this.draw();
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) save(event);
    });
    replace(this.body, form);
    replace(this.footer);
    field.focus();
  }
}
