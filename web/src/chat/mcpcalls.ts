/** Calls of MCP tools: those that the server made, and those that it asks about. */

import type { McpCall, ToolCall } from "../conversation";
import { el } from "../dom";
import { codeNode } from "../markdown/render";

const PREFIX = "mcp__";

/** Whether the server makes the call once it is approved. */
export function needsApproval(call: ToolCall): boolean {
  return call.function.name.startsWith(PREFIX);
}

/** `server / tool` of the name that the model calls. */
export function shownName(name: string): string {
  const [server, ...tool] = name.slice(PREFIX.length).split("__");
  return name.startsWith(PREFIX) ? `${server} / ${tool.join("__")}` : name;
}

/** Calls with their results, folded. */
export function mcpCallsNode(calls: McpCall[]): HTMLElement {
  return el("div", { class: "mcp-calls" }, ...calls.map(madeCall));
}

function madeCall(call: McpCall): HTMLElement {
  const name = `${call.server_label} / ${call.name}`;
  return el(
    "details",
    { class: call.error === null ? "mcp-call" : "mcp-call failed" },
    el("summary", {}, call.error === null ? "Called " : "Failed: ", el("code", {}, name)),
    codeNode(pretty(call.arguments), "json"),
    codeNode(call.error ?? call.output ?? "", "text"),
  );
}

/** Asks about calls; `onDecision` gets whether each, in order, is approved. */
export function approvalNode(
  calls: ToolCall[],
  onDecision: ((approved: boolean[]) => void) | null,
): HTMLElement {
  const boxes = calls.map((call, index) =>
    el("input", { type: "checkbox", id: `${call.id}-approve-${index}`, checked: true }),
  );
  const cards = calls.map((call, index) => {
    const name = shownName(call.function.name);
    return el(
      "div",
      { class: "tool-call" },
      el("h3", {}, onDecision ? "Wants to call " : "Asked to call ", el("code", {}, name)),
      codeNode(pretty(call.function.arguments), "json"),
      onDecision && calls.length > 1
        ? el("div", { class: "check" }, boxes[index]!, el("label", { for: boxes[index]!.id }, "Allow"))
        : null,
    );
  });
  const decide = (allow: boolean) => onDecision?.(boxes.map(box => allow && box.checked));
  return el(
    "div",
    { class: "tool-calls", role: "group", "aria-label": "Calls to approve" },
    ...cards,
    onDecision &&
      el(
        "div",
        { class: "buttons" },
        el("button", { type: "button", onclick: () => decide(false) }, "Refuse"),
        el(
          "button",
          { type: "button", class: "primary", onclick: () => decide(true) },
          calls.length > 1 ? "Go on" : "Allow once",
        ),
      ),
  );
}

export function pretty(text: string): string {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    // Still streaming, or cut off.
    return text;
  }
}
