/** The live view of the engine, from /metrics and /v1/stats once a second while it is visible. */

import { ApiError, getJson, request } from "../api";
import { sentence } from "../chat/generate";
import { branch, type CacheMiss } from "../conversation";
import { byId, confirmed, el, notify, replace } from "../dom";
import { bytes, count, rate, seconds, share } from "../format";
import { missNode } from "../misses";
import type { ConversationStore } from "../storage";
import { lineChart } from "./charts";
import { historyPanel } from "./history";
import { Interval, Metrics } from "./metrics";
import { cachePanel, memoryPanel, requestsPanel, speculationPanel, type Stats } from "./panels";

/** Two minutes. */
const POINTS = 120;
const PANELS = [
  ["now", "Now"],
  ["speed", "Speed"],
  ["memory", "Memory"],
  ["cache", "Prefix cache"],
  ["speculation", "Speculative decoding"],
  ["requests", "Requests and steps"],
  ["history", "History"],
];
const EVERY = 1000;
const RECENT_MISSES = 8;
/** Latest conversations in which misses are looked for. */
const RECENT_CONVERSATIONS = 30;
interface History {
  decode: number[];
  prefill: number[];
  running: number[];
  waiting: number[];
}

export class EngineView {
  private timer: ReturnType<typeof setInterval> | null = null;
  private last: Metrics | null = null;
  private readonly history: History = { decode: [], prefill: [], running: [], waiting: [] };
  private isReading = false;
  private firstToken: number | null = null;
  private readonly panels = new Map<string, HTMLElement>();

  constructor(private readonly store: ConversationStore) {
    for (const [id, title] of PANELS) {
      const body = el("div", {});
      this.panels.set(id!, body);
      byId("engine-panels").append(
        el("section", { class: "panel", id: `panel-${id}` }, el("h2", {}, title!), body),
      );
    }
    const recent = el("div", { id: "recent-misses" });
    const clear = el(
      "button",
      { type: "button", onclick: () => void this.clearCache() },
      "Empty the prefix cache",
    );
    byId("panel-cache").append(recent, el("div", { class: "buttons" }, clear));
  }

  show(): void {
    void this.read();
    void this.drawMisses().catch(error => notify(sentence(error), "error"));
    void historyPanel().then(nodes => this.panel("history", ...nodes));
    this.timer ??= setInterval(() => void this.read(), EVERY);
  }

  hide(): void {
    if (this.timer) clearInterval(this.timer);
    this.timer = null;
    // The pause would count as one interval.
    this.last = null;
  }

  private async read(): Promise<void> {
    if (this.isReading || document.hidden) return;
    this.isReading = true;
    const state = byId("engine-state");
    try {
      const [text, stats] = await Promise.all([
        request("GET", "metrics").then(response => response.text()),
        getJson<Stats>("v1/stats"),
      ]);
      state.textContent = `${stats.model}, version ${stats.version}, up for ${seconds(stats.uptime_s)}`;
      this.draw(new Metrics(text), stats);
    } catch (error) {
      state.textContent = sentence(error);
      // Asking again for a key that the user did not give would never end.
      if (error instanceof ApiError && error.status === 401) this.hide();
    } finally {
      this.isReading = false;
    }
  }

  private draw(metrics: Metrics, stats: Stats): void {
    const interval = new Interval(this.last ?? metrics, metrics);
    this.last = metrics;
    this.record("decode", interval.perSecond("lanner_generated_tokens_total"));
    this.record(
      "prefill",
      Math.max(
        0,
        interval.perSecond("lanner_prompt_tokens_total") -
          interval.perSecond("lanner_cached_prompt_tokens_total"),
      ),
    );
    this.record("running", metrics.value("lanner_running_sequences"));
    this.record("waiting", metrics.value("lanner_waiting_sequences"));
    this.firstToken = interval.mean("lanner_time_to_first_token_seconds") ?? this.firstToken;
    this.panel("now", this.tiles(metrics));
    this.panel("speed", ...this.charts());
    this.panel("cache", ...cachePanel(metrics));
    this.panel("speculation", ...speculationPanel(metrics));
    this.panel("memory", ...memoryPanel(metrics, stats));
    this.panel("requests", ...requestsPanel(metrics));
  }

  private record(name: keyof History, value: number): void {
    this.history[name].push(value);
    if (this.history[name].length > POINTS) this.history[name].shift();
  }

  private panel(id: string, ...children: HTMLElement[]): void {
    replace(this.panels.get(id)!, ...children);
  }

  private tiles(metrics: Metrics): HTMLElement {
    const { decode, prefill } = this.history;
    const [prompt, cached] = [
      metrics.value("lanner_prompt_tokens_total"),
      metrics.value("lanner_cached_prompt_tokens_total"),
    ];
    const tiles: [string, string][] = [
      ["Running", count(metrics.value("lanner_running_sequences"))],
      ["In the queue", count(metrics.value("lanner_waiting_sequences"))],
      ["Decode", `${rate(decode.at(-1) ?? 0)} tok/s`],
      ["Prefill", `${rate(prefill.at(-1) ?? 0)} tok/s`],
      ["To the first token", this.firstToken === null ? "–" : seconds(this.firstToken)],
      ["Prompts reused", share(cached, prompt)],
    ];
    return el(
      "dl",
      { class: "tiles" },
      ...tiles.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))),
    );
  }

  private charts(): HTMLElement[] {
    const { decode, prefill, running, waiting } = this.history;
    return [
      lineChart(
        "Tokens a second",
        [
          { name: "decode", values: decode },
          { name: "prefill", values: prefill },
        ],
        POINTS,
        rate,
      ),
      lineChart(
        "Sequences",
        [
          { name: "running", values: running },
          { name: "waiting", values: waiting },
        ],
        POINTS,
        count,
      ),
    ];
  }

  /**
   * The server tells the text at a miss with each answer; these are of the latest conversations.
   */
  private async drawMisses(): Promise<void> {
    const found: [number, string, CacheMiss][] = [];
    let read = 0;
    for await (const conversation of this.store.all()) {
      if (read++ >= RECENT_CONVERSATIONS) break;
      for (const message of branch(conversation)) {
        const miss = message.usage?.lanner?.cache.miss;
        if (miss) found.push([message.created, conversation.title, miss]);
      }
    }
    found.sort((a, b) => b[0] - a[0]);
    const items = found
      .slice(0, RECENT_MISSES)
      .map(([, title, miss]) => el("li", {}, el("strong", {}, title), missNode(miss)));
    replace(
      byId("recent-misses"),
      el("h3", {}, "Misses of the latest conversations"),
      items.length
        ? el("ul", { class: "misses" }, ...items)
        : el("p", { class: "hint" }, "None yet."),
    );
  }

  private async clearCache(): Promise<void> {
    if (
      !(await confirmed(
        "Empty the prefix cache, in memory and on the disk? Running requests continue.",
        "Empty it",
      ))
    )
      return;
    try {
      const before = (await (await request("DELETE", "v1/cache")).json()) as { bytes: number };
      notify(`Freed ${bytes(before.bytes)}.`);
    } catch (error) {
      notify(sentence(error), "error");
    }
  }
}
