/** Markdown within a block: emphasis, code, links, line breaks and formulas, as DOM nodes. */

import { el } from "../dom";
import { mathNode } from "./math";

/** Nested emphasis beyond this depth is plain text, which bounds the work for hostile text. */
const DEEPEST = 12;
const LONGEST_URL = 4000;
const URL_START = /https?:\/\/[^\s<>"'`\\]+/y;
const AUTOLINK = /<(https?:\/\/[^\s<>]+|mailto:[^\s<>]+)>/y;
const ESCAPED = /[!-/:-@[-`{-~]/;

interface Span {
  node: Node;
  end: number;
}

export function inline(text: string, depth = 0): Node[] {
  const nodes: Node[] = [];
  // Delimiters that have no end after the place where one was missed.
  const unclosed = new Set<string>();
  let plain = "";
  const flush = () => {
    if (plain) nodes.push(document.createTextNode(plain));
    plain = "";
  };
  for (let at = 0; at < text.length;) {
    const c = text[at]!;
    if (c === "\n") {
      flush();
      plain = plain.trimEnd();
      nodes.push(el("br"));
      at += 1;
      continue;
    }
    const span = depth < DEEPEST ? spanAt(text, at, depth, unclosed) : null;
    if (span) {
      flush();
      nodes.push(span.node);
      at = span.end;
    } else if (c === "\\" && ESCAPED.test(text[at + 1] ?? "")) {
      plain += text[at + 1]!;
      at += 2;
    } else {
      plain += c;
      at += 1;
    }
  }
  flush();
  return nodes;
}

function spanAt(text: string, at: number, depth: number, unclosed: Set<string>): Span | null {
  switch (text[at]) {
    case "`":
      return code(text, at, unclosed);
    case "$":
      return dollarMath(text, at, unclosed);
    case "\\":
      return parenthesisMath(text, at, unclosed);
    case "*":
    case "_":
    case "~":
      return emphasis(text, at, depth, unclosed);
    case "!":
    case "[":
      return link(text, at, depth, unclosed);
    case "<":
      return autolink(text, at);
    case "h":
      return bareUrl(text, at);
    default:
      return null;
  }
}

/** The position of `close` from `from` on, or -1; a miss is remembered. */
function find(text: string, close: string, from: number, unclosed: Set<string>): number {
  if (unclosed.has(close)) return -1;
  const at = text.indexOf(close, from);
  if (at < 0) unclosed.add(close);
  return at;
}

function run(text: string, at: number): number {
  let end = at;
  while (text[end] === text[at]) end += 1;
  return end - at;
}

function code(text: string, at: number, unclosed: Set<string>): Span | null {
  const ticks = "`".repeat(run(text, at));
  const start = at + ticks.length;
  let end = find(text, ticks, start, unclosed);
  while (end >= 0 && run(text, end) > ticks.length)
    end = find(text, ticks, end + run(text, end), unclosed);
  if (end < 0) return { node: document.createTextNode(ticks), end: start };
  let inner = text.slice(start, end).replace(/\n/g, " ");
  if (/^ .*\S.* $/.test(inner)) inner = inner.slice(1, -1);
  return { node: el("code", {}, inner), end: end + ticks.length };
}

/** As in Pandoc: no space inside the dollars, and no digit after them, so that prices stay text. */
function dollarMath(text: string, at: number, unclosed: Set<string>): Span | null {
  if (text.startsWith("$$", at)) {
    const end = find(text, "$$", at + 2, unclosed);
    return end > at + 2 ? { node: mathNode(text.slice(at + 2, end), true), end: end + 2 } : null;
  }
  if (/\s/.test(text[at + 1] ?? " ")) return null;
  const end = find(text, "$", at + 1, unclosed);
  if (end < 0 || /[\s\\]/.test(text[end - 1]!) || /\d/.test(text[end + 1] ?? "")) return null;
  return { node: mathNode(text.slice(at + 1, end), false), end: end + 1 };
}

function parenthesisMath(text: string, at: number, unclosed: Set<string>): Span | null {
  const open = text[at + 1];
  if (open !== "(" && open !== "[") return null;
  const end = find(text, open === "(" ? "\\)" : "\\]", at + 2, unclosed);
  return end < 0 ? null : { node: mathNode(text.slice(at + 2, end), open === "["), end: end + 2 };
}

function emphasis(text: string, at: number, depth: number, unclosed: Set<string>): Span | null {
  const c = text[at]!;
  const length = run(text, at);
  const size = c === "~" ? 2 : Math.min(length, 2);
  const start = at + size;
  const isWord = (index: number) => /[\p{L}\p{N}]/u.test(text[index] ?? "");
  const cannotOpen =
    length < size || length > 3 || /\s/.test(text[start] ?? " ") || (c === "_" && isWord(at - 1));
  if (cannotOpen)
    return { node: document.createTextNode(text.slice(at, at + length)), end: at + length };
  const delimiter = c.repeat(size);
  let end = find(text, delimiter, start + 1, unclosed);
  while (end >= 0 && !closes(text, end, size, c, isWord))
    end = find(text, delimiter, end + 1, unclosed);
  if (end < 0) return { node: document.createTextNode(delimiter), end: start };
  // In `***a***` the inner delimiter comes first.
  if (size === 2 && text[end + 2] === c) end += 1;
  const tag = c === "~" ? "s" : size === 2 ? "strong" : "em";
  return { node: el(tag, {}, ...inline(text.slice(start, end), depth + 1)), end: end + size };
}

function closes(
  text: string,
  end: number,
  size: number,
  c: string,
  isWord: (index: number) => boolean,
): boolean {
  if (/\s/.test(text[end - 1]!) || text[end - 1] === "\\") return false;
  if (c === "_" && isWord(end + size)) return false;
  // A single delimiter does not end in the middle of a double one.
  return size === 2 || (text[end + 1] !== c && text[end - 1] !== c) || run(text, end) === 3;
}

function link(text: string, at: number, depth: number, unclosed: Set<string>): Span | null {
  const isImage = text[at] === "!";
  const open = isImage ? at + 1 : at;
  if (text[open] !== "[") return null;
  const middle = find(text, "](", open + 1, unclosed);
  if (middle < 0 || text.slice(open + 1, middle).includes("\n\n")) return null;
  const end = closingParenthesis(text, middle + 2);
  if (end < 0) return null;
  const label = text.slice(open + 1, middle);
  const target = text
    .slice(middle + 2, end)
    .trim()
    .replace(/\s+"[^"]*"$/, "")
    .replace(/^<(.*)>$/, "$1");
  const children = isImage
    ? [document.createTextNode(`Image: ${label || target}`)]
    : inline(label, depth + 1);
  // Images are links: showing them would fetch from other hosts.
  return { node: anchor(target, children), end: end + 1 };
}

function closingParenthesis(text: string, from: number): number {
  let open = 1;
  for (let at = from; at < Math.min(text.length, from + LONGEST_URL); at++) {
    if (text[at] === "\n") return -1;
    if (text[at] === "(") open += 1;
    if (text[at] === ")" && --open === 0) return at;
  }
  return -1;
}

function autolink(text: string, at: number): Span | null {
  AUTOLINK.lastIndex = at;
  const found = AUTOLINK.exec(text);
  return (
    found && {
      node: anchor(found[1]!, [document.createTextNode(found[1]!)]),
      end: AUTOLINK.lastIndex,
    }
  );
}

function bareUrl(text: string, at: number): Span | null {
  URL_START.lastIndex = at;
  const found = URL_START.exec(text.slice(0, at + LONGEST_URL));
  if (!found) return null;
  let url = found[0].replace(/[.,;:!?*_~]+$/, "");
  if (url.endsWith(")") && !url.includes("(")) url = url.slice(0, -1);
  return { node: anchor(url, [document.createTextNode(url)]), end: at + url.length };
}

/** A link if its scheme cannot run code, else its text. */
function anchor(target: string, children: Node[]): Node {
  let url: URL;
  try {
    url = new URL(target);
  } catch {
    return el("span", { title: target }, ...children);
  }
  if (!["http:", "https:", "mailto:"].includes(url.protocol))
    return el("span", { title: target }, ...children);
  return el("a", { href: url.href, target: "_blank", rel: "noopener noreferrer" }, ...children);
}
