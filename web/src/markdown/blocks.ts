/**
 * Splits Markdown into blocks: CommonMark's usual ones, GitHub's tables and task lists, and display
 * maths.
 */

export type Block =
  | { kind: "heading"; level: number; text: string }
  | { kind: "code"; language: string; text: string; closed: boolean }
  | { kind: "math"; text: string }
  | { kind: "quote"; text: string }
  | { kind: "list"; ordered: boolean; start: number; items: Item[] }
  | { kind: "table"; align: Align[]; head: string[]; rows: string[][] }
  | { kind: "rule" }
  | { kind: "paragraph"; text: string };

export type Align = "left" | "center" | "right" | null;

export interface Item {
  text: string;
  /** Null if it is no task. */
  done: boolean | null;
}

/** A block with the text that it was read from, by which an unchanged block is recognised. */
export interface Parsed {
  source: string;
  block: Block;
}

const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([^`\s]*)[^`]*$/;
const HEADING = /^ {0,3}(#{1,6})(?:\s+(.*?))?(?:\s+#+)?\s*$/;
const RULE = /^ {0,3}(?:(?:\*\s*){3,}|(?:-\s*){3,}|(?:_\s*){3,})$/;
const MARKER = /^( {0,3})([-*+]|(\d{1,9})[.)])( +|$)(.*)$/;
const TASK = /^\[([ xX])\]\s+/;
const DELIMITER_ROW = /^\s*\|?\s*:?-+:?\s*(?:\|\s*:?-+:?\s*)*\|?\s*$/;

type Reader = (lines: string[], at: number) => { block: Block; end: number } | null;

export function parseBlocks(text: string): Parsed[] {
  const lines = text.split("\n");
  const readers: Reader[] = [
    readCode,
    readMath,
    readHeading,
    readRule,
    readQuote,
    readList,
    readTable,
    readParagraph,
  ];
  const found: Parsed[] = [];
  for (let at = 0; at < lines.length;) {
    if (lines[at]!.trim() === "") {
      at += 1;
      continue;
    }
    for (const read of readers) {
      const one = read(lines, at);
      if (!one) continue;
      found.push({ source: lines.slice(at, one.end).join("\n"), block: one.block });
      at = one.end;
      break;
    }
  }
  return found;
}

const readCode: Reader = (lines, at) => {
  const open = FENCE.exec(lines[at]!);
  if (!open) return null;
  const [, fence = "", language = ""] = open;
  const body: string[] = [];
  for (let end = at + 1; end < lines.length; end++) {
    const line = lines[end]!;
    const trimmed = line.trim();
    // A closing fence has the same character, and at least as many.
    if (trimmed.startsWith(fence) && trimmed === fence[0]!.repeat(trimmed.length)) {
      return {
        block: { kind: "code", language, text: body.join("\n"), closed: true },
        end: end + 1,
      };
    }
    body.push(line);
  }
  return {
    block: { kind: "code", language, text: body.join("\n"), closed: false },
    end: lines.length,
  };
};

const readMath: Reader = (lines, at) => {
  const first = lines[at]!.trim();
  const [open, close] = first.startsWith("$$")
    ? ["$$", "$$"]
    : first.startsWith("\\[")
      ? ["\\[", "\\]"]
      : [null, ""];
  if (open === null) return null;
  let text = first.slice(open.length);
  for (let end = at; end < lines.length; end++) {
    if (end > at) text += `\n${lines[end]!}`;
    const stop = text.indexOf(close);
    if (stop >= 0) {
      // Text after the formula makes it inline.
      return text.slice(stop + close.length).trim() === ""
        ? { block: { kind: "math", text: text.slice(0, stop) }, end: end + 1 }
        : null;
    }
  }
  return null;
};

const readHeading: Reader = (lines, at) => {
  const found = HEADING.exec(lines[at]!);
  return (
    found && {
      block: { kind: "heading", level: found[1]!.length, text: found[2] ?? "" },
      end: at + 1,
    }
  );
};

const readRule: Reader = (lines, at) =>
  RULE.test(lines[at]!) ? { block: { kind: "rule" }, end: at + 1 } : null;

const readQuote: Reader = (lines, at) => {
  const body: string[] = [];
  let end = at;
  for (; end < lines.length && /^ {0,3}>/.test(lines[end]!); end++)
    body.push(lines[end]!.replace(/^ {0,3}> ?/, ""));
  return end > at ? { block: { kind: "quote", text: body.join("\n") }, end } : null;
};

const readList: Reader = (lines, at) => {
  const first = MARKER.exec(lines[at]!);
  if (!first) return null;
  const ordered = first[3] !== undefined;
  const items: string[][] = [];
  let width = 0;
  let end = at;
  for (; end < lines.length; end++) {
    const line = lines[end]!;
    const indent = line.length - line.trimStart().length;
    const marker = indent < 4 && !(items.length && indent >= width) ? MARKER.exec(line) : null;
    if (marker && (marker[3] !== undefined) === ordered && !RULE.test(line)) {
      width = marker[1]!.length + marker[2]!.length + Math.max(1, Math.min(marker[4]!.length, 4));
      items.push([marker[5]!]);
    } else if (line.trim() === "") {
      if (!continues(lines, end, width, ordered)) break;
      items.at(-1)!.push("");
    } else if (
      indent >= Math.min(width, 2) ||
      (!marker && lines[end - 1]!.trim() !== "" && !startsBlock(line))
    ) {
      items.at(-1)!.push(line.slice(Math.min(indent, width)));
    } else break;
  }
  return {
    block: { kind: "list", ordered, start: Number(first[3] ?? 1), items: items.map(toItem) },
    end,
  };
};

/** Whether a list goes on after a blank line. */
function continues(lines: string[], blank: number, width: number, ordered: boolean): boolean {
  const next = lines.slice(blank + 1, blank + 3).find(line => line.trim() !== "");
  if (next === undefined) return false;
  const marker = MARKER.exec(next);
  const indent = next.length - next.trimStart().length;
  return (
    indent >= Math.max(2, Math.min(width, 3)) ||
    (marker !== null && (marker[3] !== undefined) === ordered && !RULE.test(next))
  );
}

function startsBlock(line: string): boolean {
  return (
    FENCE.test(line) ||
    HEADING.test(line) ||
    RULE.test(line) ||
    MARKER.test(line) ||
    /^ {0,3}>/.test(line)
  );
}

function toItem(lines: string[]): Item {
  const text = lines.join("\n").trimEnd();
  const task = TASK.exec(text);
  return task ? { text: text.slice(task[0].length), done: task[1] !== " " } : { text, done: null };
}

const readTable: Reader = (lines, at) => {
  const delimiters = lines[at + 1];
  if (delimiters === undefined || !lines[at]!.includes("|") || !DELIMITER_ROW.test(delimiters))
    return null;
  const [head, align] = [cells(lines[at]!), cells(delimiters).map(alignment)];
  if (head.length !== align.length) return null;
  const rows: string[][] = [];
  let end = at + 2;
  for (; end < lines.length && lines[end]!.includes("|") && lines[end]!.trim() !== ""; end++) {
    const row = cells(lines[end]!);
    rows.push(head.map((_, column) => row[column] ?? ""));
  }
  return { block: { kind: "table", align, head, rows }, end };
};

/** Splits a row at bars that are neither escaped nor in code. */
function cells(row: string): string[] {
  const inner = row.trim().replace(/^\|/, "").replace(/\|$/, "");
  const found = [""];
  let inCode = false;
  for (let i = 0; i < inner.length; i++) {
    const c = inner[i]!;
    if (c === "`") inCode = !inCode;
    if (c === "\\" && inner[i + 1] === "|") {
      found[found.length - 1] += "|";
      i += 1;
    } else if (c === "|" && !inCode) found.push("");
    else found[found.length - 1] += c;
  }
  return found.map(cell => cell.trim());
}

function alignment(cell: string): Align {
  const [left, right] = [cell.startsWith(":"), cell.endsWith(":")];
  return left && right ? "center" : right ? "right" : left ? "left" : null;
}

const readParagraph: Reader = (lines, at) => {
  let end = at + 1;
  while (end < lines.length && lines[end]!.trim() !== "" && !interrupts(lines, end)) end += 1;
  return { block: { kind: "paragraph", text: lines.slice(at, end).join("\n") }, end };
};

function interrupts(lines: string[], at: number): boolean {
  const line = lines[at]!;
  const marker = MARKER.exec(line);
  // A number other than 1 is more likely part of a sentence.
  const isList =
    marker !== null && marker[5] !== "" && (marker[3] === undefined || marker[3] === "1");
  const isMath = /^\s*(\$\$|\\\[)/.test(line) && readMath(lines, at) !== null;
  return (
    FENCE.test(line) ||
    HEADING.test(line) ||
    RULE.test(line) ||
    /^ {0,3}>/.test(line) ||
    isList ||
    isMath
  );
}
