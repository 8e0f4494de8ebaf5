/** Markdown as DOM nodes, updated in place while an answer streams. */

import { copyText, el, iconButton } from "../dom";
import { parseBlocks, type Block, type Parsed } from "./blocks";
import { highlight } from "./highlight";
import { inline } from "./inline";
import { mathNode } from "./math";

/** Quotes and lists nested deeper are plain text. */
const DEEPEST = 8;

/** A container of Markdown that replaces only the blocks that changed. */
export class Markdown {
  readonly node = el("div", { class: "markdown" });
  private blocks: Parsed[] = [];

  constructor(text = "") {
    this.update(text);
  }

  update(text: string): void {
    const blocks = parseBlocks(text);
    let same = 0;
    while (same < blocks.length && blocks[same]!.source === this.blocks[same]?.source) same += 1;
    while (this.node.childNodes.length > same) this.node.lastChild!.remove();
    const ranks = headingRanks(blocks);
    this.node.append(
      ...blocks.slice(same).map(({ block }, i) => blockNode(block, 0, ranks[same + i])),
    );
    this.blocks = blocks;
  }
}

/**
 * The depth of each heading, from 1: models skip levels, which outlines for screen readers must
 * not.
 */
function headingRanks(blocks: Parsed[]): number[] {
  const levels: number[] = [];
  return blocks.map(({ block }) => {
    if (block.kind !== "heading") return 0;
    while (levels.length && levels.at(-1)! >= block.level) levels.pop();
    levels.push(block.level);
    return levels.length;
  });
}

function blockNode(block: Block, depth: number, rank = 1): Node {
  switch (block.kind) {
    // The page has the first two levels.
    case "heading":
      return el(`h${Math.min(rank + 2, 6)}` as "h3", {}, ...inline(block.text));
    case "code":
      return codeNode(block.text, block.language);
    case "math":
      return el(
        "div",
        { class: "math-block", tabindex: 0, role: "group", "aria-label": "Formula" },
        mathNode(block.text, true),
      );
    case "quote":
      return el("blockquote", {}, ...nested(block.text, depth));
    case "list":
      return listNode(block, depth);
    case "table":
      return tableNode(block);
    case "rule":
      return el("hr");
    case "paragraph":
      return el("p", {}, ...inline(block.text));
  }
}

function nested(text: string, depth: number): Node[] {
  if (depth >= DEEPEST) return [document.createTextNode(text)];
  return parseBlocks(text).map(({ block }) => blockNode(block, depth + 1));
}

function listNode(list: Extract<Block, { kind: "list" }>, depth: number): Node {
  const items = list.items.map(item => {
    const children = nested(item.text, depth);
    // A tight item has no paragraph of its own.
    const first = children[0];
    if (first instanceof HTMLParagraphElement) children.splice(0, 1, ...first.childNodes);
    const box =
      item.done === null
        ? null
        : el("input", {
            type: "checkbox",
            disabled: true,
            checked: item.done,
            "aria-label": item.done ? "done" : "to do",
          });
    return el("li", { class: box ? "task" : null }, box, ...children);
  });
  return list.ordered
    ? el("ol", { start: list.start === 1 ? null : list.start }, ...items)
    : el("ul", {}, ...items);
}

function tableNode({ head, align, rows }: Extract<Block, { kind: "table" }>): Node {
  const cell = (tag: "th" | "td") => (text: string, column: number) =>
    el(
      tag,
      {
        class: align[column] ? `align-${align[column]}` : null,
        scope: tag === "th" ? "col" : null,
      },
      ...inline(text),
    );
  const table = el(
    "table",
    {},
    el("thead", {}, el("tr", {}, ...head.map(cell("th")))),
    el("tbody", {}, ...rows.map(row => el("tr", {}, ...row.map(cell("td"))))),
  );
  return el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Table" }, table);
}

/** A code block with its language and a copy button. */
export function codeNode(text: string, language: string): HTMLElement {
  const copy = iconButton("copy", "Copy code", () => copyText(text, copy));
  return el(
    "figure",
    { class: "code" },
    el("figcaption", {}, el("span", {}, language || "text"), copy),
    el(
      "pre",
      { tabindex: 0, "aria-label": `Code, ${language || "text"}` },
      el("code", {}, ...highlight(text, language)),
    ),
  );
}
