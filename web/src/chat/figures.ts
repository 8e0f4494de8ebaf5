/** The figures of an answer: tokens, speed, reuse and its miss, drafts, and whether it is lossy. */

import type { Message } from "../conversation";
import { el } from "../dom";
import { count, rate, seconds, share } from "../format";
import { missNode } from "../misses";

export function figuresNode(message: Message): HTMLElement | null {
  const { usage, timings } = message;
  if (!usage) return null;
  const parts = [`${count(usage.completion_tokens)} tokens`];
  if (timings?.predicted_per_second) parts.push(`${rate(timings.predicted_per_second)} tok/s`);
  if (timings) parts.push(`first after ${seconds(timings.prompt_ms / 1000)}`);
  const cache = usage.lanner?.cache;
  const cached = cache?.cached_tokens ?? 0;
  if (cached > 0) parts.push(`${share(cached, usage.prompt_tokens)} of the prompt reused`);
  const drafts = usage.lanner?.speculation;
  if (drafts?.drafted) parts.push(`${share(drafts.accepted, drafts.drafted)} of drafts accepted`);
  return el(
    "details",
    { class: "figures" },
    el("summary", {}, parts.join(" · ")),
    details(message),
  );
}

function details({ usage, timings, model }: Message): HTMLElement {
  const cache = usage?.lanner?.cache;
  const rows: [string, string][] = [
    ["Model", model ?? ""],
    [
      "Prompt",
      `${count(usage?.prompt_tokens ?? 0)} tokens, ${count(cache?.cached_tokens ?? 0)} of them reused${cache?.source ? ` from ${cache.source}` : ""}`,
    ],
    [
      "Answer",
      `${count(usage?.completion_tokens ?? 0)} tokens, ${count(usage?.completion_tokens_details?.reasoning_tokens ?? 0)} of them reasoning`,
    ],
  ];
  if (timings)
    rows.push([
      "Time",
      `${seconds(timings.prompt_ms / 1000)} to the first token, then ${seconds(timings.predicted_ms / 1000)}`,
    ]);
  for (const [drafter, drafts] of Object.entries(usage?.lanner?.speculation.by_drafter ?? {})) {
    rows.push([
      `Drafts, ${drafter}`,
      `${count(drafts.accepted)} of ${count(drafts.drafted)} accepted`,
    ]);
  }
  if (usage?.lanner?.lossy?.length)
    rows.push([
      "Lossy",
      `${usage.lanner.lossy.join(", ")}: the answer may differ from the model's`,
    ]);
  return el(
    "div",
    {},
    el("dl", {}, ...rows.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)])),
    cache?.miss ? el("div", {}, el("h3", {}, "Cache miss"), missNode(cache.miss)) : null,
  );
}
