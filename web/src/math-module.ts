/** The module `math.js`: TeX to MathML, with limits on what a formula may do. */

import temml from "temml";

/**
 * Throws on invalid TeX. Links and classes in formulas are off, and sizes and macros are limited.
 */
export function convert(tex: string, display: boolean): Node {
  const box = document.createElement("span");
  temml.render(tex, box, {
    displayMode: display,
    throwOnError: true,
    trust: false,
    strict: false,
    maxSize: [20, 100],
    maxExpand: 200,
  });
  return box.firstChild ?? document.createTextNode(tex);
}
