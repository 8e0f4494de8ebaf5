/**
 * An answer token by token, shaded by probability, with the alternatives of the token under the
 * pointer or the focus.
 */

import type { ScoredToken } from "../conversation";
import { el, replace } from "../dom";

/** Upper bounds of the shades: a likelier token is lighter. */
const SHADES = [0.1, 0.3, 0.6, 0.9];

export function tokenView(tokens: ScoredToken[]): HTMLElement {
  const table = el(
    "div",
    { class: "alternatives", "aria-live": "polite" },
    el("p", { class: "hint" }, "Point at a token, or use the arrow keys."),
  );
  const buttons = tokens.map((token, index) => {
    const show = () => replace(table, alternatives(token, index));
    const label = `${visible(token.token)}, ${percent(token.logprob)}`;
    return el(
      "button",
      {
        type: "button",
        class: `token shade-${shade(token.logprob)}`,
        "aria-label": label,
        tabindex: index === 0 ? 0 : -1,
        onmouseenter: show,
        onfocus: show,
      },
      token.token,
    );
  });
  const row = el(
    "div",
    { class: "tokens", role: "toolbar", "aria-label": "Tokens of the answer" },
    ...buttons,
  );
  row.addEventListener("keydown", event => move(event, buttons));
  return el("div", { class: "token-view" }, row, table);
}

/** One token is in the tab order; arrows move between them. */
function move(event: KeyboardEvent, buttons: HTMLButtonElement[]): void {
  const at = buttons.indexOf(document.activeElement as HTMLButtonElement);
  const steps: Record<string, number> = {
    ArrowRight: 1,
    ArrowLeft: -1,
    Home: -at,
    End: buttons.length - 1 - at,
  };
  const step = steps[event.key];
  const next = step === undefined ? undefined : buttons[at + step];
  if (!next) return;
  event.preventDefault();
  buttons[at]!.tabIndex = -1;
  next.tabIndex = 0;
  next.focus();
}

function alternatives(token: ScoredToken, index: number): Node {
  const all = token.top.some(one => one.token === token.token) ? token.top : [token, ...token.top];
  const rows = all.map(one =>
    el(
      "tr",
      { class: one.token === token.token ? "chosen" : null },
      el("td", {}, el("code", {}, visible(one.token))),
      el("td", { class: "align-right" }, percent(one.logprob)),
      el("td", { class: "align-right" }, one.logprob.toFixed(2)),
    ),
  );
  return el(
    "table",
    {},
    el("caption", {}, `Token ${index + 1}`),
    el(
      "thead",
      {},
      el(
        "tr",
        {},
        ...["Token", "Probability", "Log"].map(name => el("th", { scope: "col" }, name)),
      ),
    ),
    el("tbody", {}, ...rows),
  );
}

function shade(logprob: number): number {
  const probability = Math.exp(logprob);
  const at = SHADES.findIndex(bound => probability < bound);
  return at < 0 ? SHADES.length : at;
}

function percent(logprob: number): string {
  const value = 100 * Math.exp(logprob);
  return value >= 0.1 ? `${value.toFixed(1)} %` : "< 0.1 %";
}

/** Whitespace as signs. */
function visible(token: string): string {
  return token.replace(/ /g, "␣").replace(/\n/g, "⏎").replace(/\t/g, "⇥") || "(empty)";
}
