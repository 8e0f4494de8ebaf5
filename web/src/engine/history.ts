/** Requests of the last day and month, from the server's store. */

import { getJson } from "../api";
import { sentence } from "../chat/generate";
import { el } from "../dom";
import { count, share } from "../format";
import { barChart, type Series } from "./charts";
import type { Stats } from "./panels";

interface Sum {
  start: number;
  model: string;
  requests: number;
  failed: number;
  tokens: { prompt: number; cached: number; generated: number };
}

const HOUR = 3600;
const DAY = 24 * HOUR;
/** Models that have a colour of their own. */
const MODELS = 4;
const NONE = "The server stores no history: it was started with --no-store.";

/** Never fails: what cannot be read is said in the panel. */
export async function historyPanel(): Promise<HTMLElement[]> {
  try {
    if (!(await getJson<Stats>("v1/stats")).store?.history) return [hint(NONE)];
    const [hours, days] = await Promise.all([sums("hour", 1), sums("day", 30)]);
    if (!days.length) return [hint("No requests yet.")];
    const now = Date.now() / 1000;
    return [
      chart("Generated tokens, last 24 hours", hours, now - DAY, HOUR, 25),
      chart("Generated tokens, last 30 days", days, now - 30 * DAY, DAY, 31),
      el("p", { class: "hint" }, totals(days)),
    ];
  } catch (error) {
    return [hint(sentence(error))];
  }
}

async function sums(by: string, days: number): Promise<Sum[]> {
  return (await getJson<{ data: Sum[] }>(`v1/stats/history?by=${by}&days=${days}`)).data;
}

/** A bar for each period, with a part for each model. */
function chart(title: string, all: Sum[], from: number, step: number, bars: number): HTMLElement {
  const models = [...new Set(all.filter(sum => sum.tokens.generated > 0).map(sum => sum.model))];
  const total = (model: string) =>
    all.reduce((sum, one) => sum + (one.model === model ? one.tokens.generated : 0), 0);
  models.sort((a, b) => total(b) - total(a));
  const own = models.slice(0, MODELS - 1);
  const rest = models.length === MODELS ? models.slice(MODELS - 1) : [];
  const names = [...own, ...(models.length > MODELS ? ["others"] : rest)];
  const series: Series[] = names.map(name => ({ name, values: Array<number>(bars).fill(0) }));
  for (const sum of all) {
    const at = Math.min(bars - 1, Math.max(0, Math.ceil((sum.start - from) / step)));
    const place = names.indexOf(sum.model);
    const one = series[place < 0 ? series.length - 1 : place];
    if (one && sum.tokens.generated > 0) one.values[at]! += sum.tokens.generated;
  }
  return barChart(title, series, bars, count);
}

function totals(days: Sum[]): string {
  const add = (of: (sum: Sum) => number) => days.reduce((total, sum) => total + of(sum), 0);
  const requests = add(sum => sum.requests);
  const failed = add(sum => sum.failed);
  const reused = share(
    add(sum => sum.tokens.cached),
    add(sum => sum.tokens.prompt),
  );
  return `In 30 days: ${count(requests)} requests, ${count(failed)} of them failed; ${reused} of the prompts' tokens were reused.`;
}

function hint(text: string): HTMLElement {
  return el("p", { class: "hint" }, text);
}
