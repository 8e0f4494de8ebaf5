/** Why the prefix cache could not reuse more of a prompt, in words. */

import type { CacheMiss } from "./conversation";
import { el } from "./dom";
import { count } from "./format";

const REASONS: Record<string, string> = {
  differs: "The closest earlier prompt has another token here.",
  no_checkpoint:
    "The model has recurrent state, which resumes only at a snapshot; this is the last one before the first different token.",
  evicted: "The state after this token was evicted. A larger --prefix-cache keeps more.",
  too_large: "The state of more tokens exceeds the cache. Raise --prefix-cache.",
  logprobs: "The request wants log-probabilities of the prompt, so all of it was computed.",
  disabled: "The server has no prefix cache.",
};

const VOLATILE: Record<string, string> = {
  billing: "a billing header, which changes with every request",
  time: "a line with the time of day",
  token_countdown: "a line that counts tokens",
  date: "a line with the date",
};

export function explain(reason: string): string {
  return REASONS[reason] ?? "The server gives no description of this reason.";
}

export function missNode(miss: CacheMiss): HTMLElement {
  const line = miss.spoiler
    ? `It is in ${VOLATILE[miss.spoiler] ?? miss.spoiler}. --volatile-prefix normalize can move it.`
    : null;
  return el(
    "div",
    { class: "miss" },
    el(
      "p",
      {},
      el("code", {}, miss.reason),
      ` at token ${count(miss.position)}. `,
      explain(miss.reason),
      line && ` ${line}`,
    ),
    miss.text ? el("blockquote", { class: "miss-text" }, miss.text) : null,
  );
}
