/** The panels of the engine view that show one reading of the counters. */

import { el } from "../dom";
import { bytes, count, share } from "../format";
import { explain } from "../misses";
import { meter, stackedBar } from "./charts";
import type { Metrics } from "./metrics";

const CLASSES: Record<string, string> = {
  weights: "weights",
  step: "step",
  sequences: "running requests",
  drafters: "drafters",
  loading: "model being loaded",
  prefix_cache: "prefix cache",
};

export interface Stats {
  model: string;
  version: string;
  uptime_s: number;
  memory: { active_bytes: number; peak_bytes: number; machine_bytes?: number | null };
  store?: { history: boolean };
}

export function cachePanel(metrics: Metrics): HTMLElement[] {
  const [used, budget] = [
    metrics.value("lanner_prefix_cache_bytes"),
    metrics.value("lanner_prefix_cache_budget_bytes"),
  ];
  const hits = metrics
    .by("lanner_prefix_cache_hits_total", "source")
    .map(([source, n]) => row([source === "ram" ? "from memory" : "from the disk", count(n)]));
  const misses = metrics
    .by("lanner_prefix_cache_misses_total", "reason")
    .filter(([, n]) => n > 0)
    .map(([reason, n]) =>
      el(
        "tr",
        {},
        el("th", { scope: "row" }, el("code", {}, reason)),
        el("td", { class: "align-right" }, count(n)),
        el("td", {}, explain(reason)),
      ),
    );
  return [
    el(
      "p",
      {},
      `${bytes(used)} of ${bytes(budget)} in memory, ${count(metrics.value("lanner_prefix_cache_entries"))} spans; ` +
        `${bytes(metrics.value("lanner_disk_cache_bytes"))} on the disk; ${count(metrics.value("lanner_prefix_cache_evictions_total"))} evictions`,
    ),
    meter(`Prefix cache: ${share(used, budget)} full`, budget > 0 ? used / budget : 0),
    table("Hits", [], hits),
    misses.length
      ? table("Misses", ["Reason", "Sequences", "Why"], misses)
      : el("p", { class: "hint" }, "No misses yet."),
  ];
}

export function speculationPanel(metrics: Metrics): HTMLElement[] {
  const accepted = new Map(metrics.by("lanner_speculation_accepted_tokens_total", "drafter"));
  const rows = metrics
    .by("lanner_speculation_drafted_tokens_total", "drafter")
    .filter(([, drafted]) => drafted > 0)
    .map(([drafter, drafted]) => {
      const kept = accepted.get(drafter) ?? 0;
      return el(
        "tr",
        {},
        el("th", { scope: "row" }, el("code", {}, drafter)),
        el("td", { class: "align-right" }, count(drafted)),
        el("td", { class: "align-right" }, count(kept)),
        el(
          "td",
          {},
          meter(`${share(kept, drafted)} accepted`, kept / drafted),
          ` ${share(kept, drafted)}`,
        ),
      );
    });
  if (!rows.length) return [el("p", { class: "hint" }, "Nothing has been drafted yet.")];
  const [drafting, all] = [
    metrics.value("lanner_speculation_seconds_total"),
    metrics.value("lanner_step_seconds_total"),
  ];
  return [
    table("Drafters", ["Drafter", "Drafted", "Accepted", "Rate"], rows),
    el("p", {}, `Drafting took ${share(drafting, all)} of the computing time.`),
  ];
}

export function memoryPanel(metrics: Metrics, stats: Stats): HTMLElement[] {
  const parts = metrics
    .by("lanner_memory_reserved_bytes", "class")
    .map(([name, value]): [string, number] => [CLASSES[name] ?? name, value]);
  const reserved = parts.reduce((sum, [, value]) => sum + value, 0);
  const limit = metrics.value("lanner_memory_limit_bytes");
  const machine = stats.memory.machine_bytes ?? 0;
  const whole = Math.max(limit || machine, reserved);
  const of = limit
    ? `the limit of ${bytes(limit)}`
    : machine
      ? `this machine’s ${bytes(machine)}`
      : "no limit";
  return [
    el(
      "p",
      {},
      `${bytes(reserved)} reserved, of ${of}. MLX holds ${bytes(stats.memory.active_bytes)}, at most ${bytes(stats.memory.peak_bytes)} so far.`,
    ),
    whole > 0
      ? meter(`Reserved: ${share(reserved, whole)} of ${of}`, reserved / whole)
      : el("span", {}),
    el("h3", {}, "What it is reserved for"),
    stackedBar("Reserved memory", parts, reserved, bytes),
  ];
}

export function requestsPanel(metrics: Metrics): HTMLElement[] {
  const outcomes = metrics
    .by("lanner_requests_total", "outcome")
    .map(([name, n]) => row([name, count(n)]));
  const steps = metrics.by("lanner_steps_total", "kind");
  const total = steps.reduce((sum, [, n]) => sum + n, 0);
  const mean = (name: string) => (total > 0 ? (metrics.value(name) / total).toFixed(1) : "–");
  return [
    el(
      "div",
      { class: "columns" },
      table("Ended requests", [], outcomes),
      table(
        "Steps",
        [],
        [
          ...steps.map(([kind, n]) => row([kind, count(n)])),
          row(["mean sequences", mean("lanner_step_sequences_total")]),
          row(["mean tokens", mean("lanner_step_tokens_total")]),
          row(["failed", count(metrics.value("lanner_step_failures_total"))]),
        ],
      ),
      table(
        "Tokens",
        [],
        [
          row(["prompts", count(metrics.value("lanner_prompt_tokens_total"))]),
          row(["reused", count(metrics.value("lanner_cached_prompt_tokens_total"))]),
          row(["generated", count(metrics.value("lanner_generated_tokens_total"))]),
          row(["preemptions", count(metrics.value("lanner_preemptions_total"))]),
        ],
      ),
    ),
  ];
}

function row([name, value]: [string, string]): HTMLElement {
  return el("tr", {}, el("th", { scope: "row" }, name), el("td", { class: "align-right" }, value));
}

function table(caption: string, head: string[], rows: HTMLElement[]): HTMLElement {
  const names = head.map((name, i) =>
    el("th", { scope: "col", class: i > 0 && i < head.length - 1 ? "align-right" : null }, name),
  );
  return el(
    "table",
    {},
    el("caption", {}, caption),
    head.length ? el("thead", {}, el("tr", {}, ...names)) : null,
    el("tbody", {}, ...rows),
  );
}
