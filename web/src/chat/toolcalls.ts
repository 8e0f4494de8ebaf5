/** Calls that the model made, and a field for the result of each that has none yet. */

import type { Message } from "../conversation";
import { el } from "../dom";
import { codeNode } from "../markdown/render";
import { needsApproval, pretty } from "./mcpcalls";

/** `onResults` gets a result for every call, in order; without it the calls are only shown. */
export function toolCallsNode(
  message: Message,
  onResults: ((results: string[]) => void) | null,
): HTMLElement {
  const calls = (message.toolCalls ?? []).filter(call => !needsApproval(call));
  const fields = calls.map((call, index) =>
    el("textarea", {
      rows: 2,
      id: `${message.id}-result-${index}`,
      required: true,
      "aria-label": `Result of ${call.function.name}`,
    }),
  );
  const cards = calls.map((call, index) =>
    el(
      "div",
      { class: "tool-call" },
      el("h3", {}, "Calls ", el("code", {}, call.function.name)),
      codeNode(pretty(call.function.arguments), "json"),
      onResults && el("label", { for: fields[index]!.id }, "Result"),
      onResults && fields[index]!,
    ),
  );
  const send = (event: Event) => {
    event.preventDefault();
    onResults?.(fields.map(field => field.value));
  };
  return el(
    "form",
    { class: "tool-calls", onsubmit: send },
    ...cards,
    onResults &&
      el(
        "button",
        { class: "primary", type: "submit" },
        calls.length > 1 ? "Send results" : "Send result",
      ),
  );
}
