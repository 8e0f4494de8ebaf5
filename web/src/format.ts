/** Numbers as people read them. */

export function bytes(count: number): string {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (count >= 1024 && unit < units.length - 1) {
    count /= 1024;
    unit += 1;
  }
  return `${unit === 0 || count >= 100 ? Math.round(count) : count.toFixed(1)} ${units[unit]}`;
}

export function count(value: number): string {
  return Math.round(value).toLocaleString("en").replace(/,/g, "\u202f");
}

export function rate(value: number): string {
  return value >= 100 ? count(value) : value.toFixed(1);
}

export function share(part: number, whole: number): string {
  return whole > 0 ? `${((100 * part) / whole).toFixed(part === whole ? 0 : 1)} %` : "–";
}

export function seconds(value: number): string {
  if (value < 1) return `${Math.round(value * 1000)} ms`;
  if (value < 60) return `${value < 10 ? value.toFixed(1) : Math.round(value)} s`;
  if (value < 3600) return `${Math.floor(value / 60)} min ${Math.round(value % 60)} s`;
  const hours = Math.floor(value / 3600);
  return hours < 48
    ? `${hours} h ${Math.round((value % 3600) / 60)} min`
    : `${Math.round(hours / 24)} days`;
}

export function day(time: number): string {
  const age = (startOfDay(Date.now()) - startOfDay(time)) / 86_400_000;
  if (age < 0.5) return "Today";
  if (age < 1.5) return "Yesterday";
  return age < 7.5 ? "Last seven days" : "Older";
}

function startOfDay(time: number): number {
  return new Date(time).setHours(0, 0, 0, 0);
}
