/** Reads Prometheus' text format, and takes differences of two readings. */

interface Sample {
  labels: Record<string, string>;
  value: number;
}

export class Metrics {
  private readonly families = new Map<string, Sample[]>();

  constructor(
    text: string,
    readonly time = performance.now(),
  ) {
    for (const line of text.split("\n")) {
      const found = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)$/.exec(line);
      if (!found) continue;
      const sample = { labels: labelsOf(found[2] ?? ""), value: Number(found[3]) };
      const family = this.families.get(found[1]!);
      if (family) family.push(sample);
      else this.families.set(found[1]!, [sample]);
    }
  }

  value(name: string): number {
    return this.families.get(name)?.[0]?.value ?? 0;
  }

  /** The values by the only label. */
  by(name: string, label: string): [string, number][] {
    return (this.families.get(name) ?? []).map(sample => [
      sample.labels[label] ?? "",
      sample.value,
    ]);
  }

  total(name: string): number {
    return (this.families.get(name) ?? []).reduce((sum, sample) => sum + sample.value, 0);
  }
}

function labelsOf(text: string): Record<string, string> {
  const labels: Record<string, string> = {};
  for (const [, name, value] of text.matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g))
    labels[name!] = value!.replace(/\\(.)/g, "$1");
  return labels;
}

/** What happened between two readings. */
export class Interval {
  constructor(
    private readonly before: Metrics,
    private readonly after: Metrics,
  ) {}

  delta(name: string): number {
    return Math.max(0, this.after.value(name) - this.before.value(name));
  }

  perSecond(name: string): number {
    const seconds = (this.after.time - this.before.time) / 1000;
    return seconds > 0 ? this.delta(name) / seconds : 0;
  }

  /** The mean of a histogram's new values, or null. */
  mean(histogram: string): number | null {
    const samples = this.delta(`${histogram}_count`);
    return samples > 0 ? this.delta(`${histogram}_sum`) / samples : null;
  }
}
