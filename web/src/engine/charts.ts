/**
 * Charts as SVG: lines over time, and a stacked bar. Each has its figures as text for screen
 * readers.
 */

import { el, svg } from "../dom";

const [WIDTH, HEIGHT] = [600, 120];

export interface Series {
  name: string;
  /** Oldest first. */
  values: number[];
}

/** Lines with a common scale; `points` is the number of values over the whole width. */
export function lineChart(
  title: string,
  series: Series[],
  points: number,
  show: (value: number) => string,
): HTMLElement {
  const top = niceTop(Math.max(1, ...series.flatMap(one => one.values)));
  const lines = series.map((one, i) =>
    svg("polyline", { class: `line color-${i}`, points: polyline(one.values, points, top) }),
  );
  const grid = [0.5, 1].map(part =>
    svg("line", {
      class: "grid-line",
      x1: 0,
      x2: WIDTH,
      y1: HEIGHT * (1 - part) + 1,
      y2: HEIGHT * (1 - part) + 1,
    }),
  );
  const now = series.map(one => `${one.name} ${show(one.values.at(-1) ?? 0)}`).join(", ");
  const picture = svg(
    "svg",
    {
      viewBox: `0 0 ${WIDTH} ${HEIGHT + 2}`,
      class: "chart",
      preserveAspectRatio: "none",
      role: "img",
      "aria-label": `${title}: ${now}`,
    },
    ...grid,
    ...lines,
  );
  return el(
    "figure",
    { class: "line-chart" },
    el(
      "figcaption",
      {},
      el("strong", {}, title),
      legend(series.map(one => [one.name, show(one.values.at(-1) ?? 0)])),
    ),
    el("div", { class: "plot" }, picture, el("span", { class: "scale" }, show(top))),
  );
}

/** Stacked bars over time; `bars` is their number. */
export function barChart(
  title: string,
  series: Series[],
  bars: number,
  show: (value: number) => string,
): HTMLElement {
  const sums = Array.from({ length: bars }, (_, at) =>
    series.reduce((sum, one) => sum + (one.values[at] ?? 0), 0),
  );
  const top = niceTop(Math.max(1, ...sums));
  const width = WIDTH / bars;
  const filled = Array<number>(bars).fill(0);
  const parts = series.flatMap((one, i) =>
    one.values.map((value, at) => {
      const height = (value / top) * HEIGHT;
      filled[at]! += height;
      const y = HEIGHT + 1 - filled[at]!;
      return svg("rect", { class: `fill color-${i}`, x: at * width + 1, y, width: width - 2, height });
    }),
  );
  const entries = series.map((one): [string, string] => [
    one.name,
    show(one.values.reduce((sum, value) => sum + value, 0)),
  ]);
  const text = entries.map(([name, value]) => `${name} ${value}`).join(", ") || "none";
  const picture = svg(
    "svg",
    {
      viewBox: `0 0 ${WIDTH} ${HEIGHT + 2}`,
      class: "chart",
      preserveAspectRatio: "none",
      role: "img",
      "aria-label": `${title}: ${text}`,
    },
    svg("line", { class: "grid-line", x1: 0, x2: WIDTH, y1: 1, y2: 1 }),
    ...parts,
  );
  return el(
    "figure",
    { class: "line-chart" },
    el("figcaption", {}, el("strong", {}, title), legend(entries)),
    el("div", { class: "plot" }, picture, el("span", { class: "scale" }, show(top))),
  );
}

function polyline(values: number[], points: number, top: number): string {
  const start = points - values.length;
  return values
    .map(
      (value, i) =>
        `${(((start + i) / (points - 1)) * WIDTH).toFixed(1)},${(HEIGHT + 1 - (value / top) * HEIGHT).toFixed(1)}`,
    )
    .join(" ");
}

/** The next of 1, 2, 5 times a power of ten. */
function niceTop(value: number): number {
  const power = 10 ** Math.floor(Math.log10(value));
  return power * ([1, 2, 5].find(step => step * power >= value) ?? 10);
}

export function legend(entries: [string, string][]): HTMLElement {
  return el(
    "ul",
    { class: "legend" },
    ...entries.map(([name, value], i) =>
      el(
        "li",
        {},
        el("span", { class: `swatch color-${i}`, "aria-hidden": "true" }),
        `${name} `,
        el("b", {}, value),
      ),
    ),
  );
}

/** Parts of a whole; what they leave stays empty. */
export function stackedBar(
  title: string,
  parts: [string, number][],
  whole: number,
  show: (value: number) => string,
): HTMLElement {
  let x = 0;
  const bars = parts.map(([, value], i) => {
    const width = whole > 0 ? (value / whole) * WIDTH : 0;
    const bar = svg("rect", { class: `fill color-${i}`, x, y: 0, width, height: 28 });
    x += width;
    return bar;
  });
  const text = parts.map(([name, value]) => `${name} ${show(value)}`).join(", ");
  return el(
    "figure",
    { class: "stacked" },
    svg(
      "svg",
      {
        viewBox: `0 0 ${WIDTH} 28`,
        preserveAspectRatio: "none",
        class: "bar",
        role: "img",
        "aria-label": `${title}: ${text}`,
      },
      ...bars,
    ),
    legend(parts.map(([name, value]) => [name, show(value)])),
  );
}

/** A share of 1 as a bar. */
export function meter(label: string, value: number): HTMLElement {
  const part = Math.min(1, Math.max(0, value)) * 100;
  return el(
    "span",
    { class: "meter" },
    svg(
      "svg",
      { viewBox: "0 0 100 8", preserveAspectRatio: "none", role: "img", "aria-label": label },
      svg("rect", { class: "fill color-0", x: 0, y: 0, width: part, height: 8 }),
    ),
  );
}
