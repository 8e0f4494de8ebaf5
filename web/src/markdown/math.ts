/**
 * Formulas as MathML, which needs no fonts or styles of ours. The converter is loaded with the
 * first formula.
 */

import { el } from "../dom";

interface Converter {
  convert(tex: string, display: boolean): Node;
}

let converter: Converter | null = null;
let loading: Promise<void> | null = null;
const LONGEST = 5000;

/** The formula, or its source until the converter is there; also if it is not valid TeX. */
export function mathNode(tex: string, display: boolean): HTMLElement {
  const node = el("span", { class: display ? "math display" : "math" }, tex);
  if (tex.length > LONGEST) return node;
  if (converter) {
    convert(converter, node, tex, display);
  } else {
    loading ??= load();
    loading.then(() => converter && convert(converter, node, tex, display)).catch(() => undefined);
  }
  return node;
}

async function load(): Promise<void> {
  // A variable, so that the bundler leaves this import to the browser.
  const path = "./math.js";
  converter = (await import(path)) as Converter;
}

function convert({ convert }: Converter, node: HTMLElement, tex: string, display: boolean): void {
  try {
    node.replaceChildren(convert(tex, display));
  } catch {
    node.classList.add("invalid");
  }
}
