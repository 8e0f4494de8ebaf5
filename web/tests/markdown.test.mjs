// Markdown to DOM nodes, in headless Chromium: `node --test tests/markdown.test.mjs`.

import assert from "node:assert/strict";
import { dirname, join } from "node:path";
import { after, before, test } from "node:test";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";
import { browser } from "./support.mjs";

let chromium, page;

before(async () => {
  const web = join(dirname(fileURLToPath(import.meta.url)), "..");
  const entry =
    'import { Markdown } from "./src/markdown/render"; import { highlight } from "./src/markdown/highlight";' +
    "window.render = text => new Markdown(text).node.innerHTML; window.Markdown = Markdown; window.highlight = highlight;" +
    'import { convert } from "./src/math-module"; window.convert = convert;';
  const built = await build({
    stdin: { contents: entry, resolveDir: web, loader: "ts" },
    bundle: true,
    write: false,
    format: "iife",
  });
  chromium = await browser();
  page = await chromium.newPage();
  // MathML needs a document in standards mode.
  await page.setContent("<!doctype html>");
  await page.evaluate(built.outputFiles[0].text);
});

after(() => chromium?.close());

function check(name, cases) {
  test(name, async () => {
    for (const [text, expected] of cases)
      assert.equal(await page.evaluate(text => window.render(text), text), expected, text);
  });
}

check("emphasis_and_code_nest", [
  ["a **b *c* d** e", "<p>a <strong>b <em>c</em> d</strong> e</p>"],
  ["***a***", "<p><strong><em>a</em></strong></p>"],
  ["~~a~~ and ~b~", "<p><s>a</s> and ~b~</p>"],
  ["`a*b*` ``c`d``", "<p><code>a*b*</code> <code>c`d</code></p>"],
  ["snake_case_name and 2 * 3 * 4", "<p>snake_case_name and 2 * 3 * 4</p>"],
  ["\\*not\\* **open", "<p>*not* **open</p>"],
  ["one\ntwo", "<p>one<br>two</p>"],
]);

check("html_is_text", [
  ["<b>a</b> <script>x</script>", "<p>&lt;b&gt;a&lt;/b&gt; &lt;script&gt;x&lt;/script&gt;</p>"],
  ["<img src=x onerror=alert(1)>", "<p>&lt;img src=x onerror=alert(1)&gt;</p>"],
]);

check("only_harmless_schemes_are_links", [
  [
    "[a](https://x.example/y)",
    '<p><a href="https://x.example/y" target="_blank" rel="noopener noreferrer">a</a></p>',
  ],
  [
    "see https://x.example/y.",
    '<p>see <a href="https://x.example/y" target="_blank" rel="noopener noreferrer">https://x.example/y</a>.</p>',
  ],
  ["[a](javascript:alert)", '<p><span title="javascript:alert">a</span></p>'],
  ["[a](JaVaScRiPt:alert)", '<p><span title="JaVaScRiPt:alert">a</span></p>'],
  ["[a](data:text/html,x)", '<p><span title="data:text/html,x">a</span></p>'],
  [
    "![owl](https://x.example/o.png)",
    '<p><a href="https://x.example/o.png" target="_blank" rel="noopener noreferrer">Image: owl</a></p>',
  ],
]);

check("blocks_are_read", [
  ["# A\n## B ##", "<h3>A</h3><h4>B</h4>"],
  ["### A\n# B\n### C\n# D", "<h3>A</h3><h3>B</h3><h4>C</h4><h3>D</h3>"],
  ["a\n\n---\n\n> b\n> c", "<p>a</p><hr><blockquote><p>b<br>c</p></blockquote>"],
  ["- a\n- b\n  - c\n- d", "<ul><li>a</li><li>b<ul><li>c</li></ul></li><li>d</li></ul>"],
  ["3. a\n4. b", '<ol start="3"><li>a</li><li>b</li></ol>'],
  ["1. a\n\n   more\n\n2. b", "<ol><li>a<p>more</p></li><li>b</li></ol>"],
  ["- a\n\ntext", "<ul><li>a</li></ul><p>text</p>"],
  ["text\n- a\n- b", "<p>text</p><ul><li>a</li><li>b</li></ul>"],
  ["In\n2024. It was", "<p>In<br>2024. It was</p>"],
]);

test("price_is_not_a_formula", async () => {
  const text = await page.evaluate(() => window.render("It costs $5 and $6."));
  assert.equal(text, "<p>It costs $5 and $6.</p>");
  assert.match(await page.evaluate(() => window.render("Let $x$ be.")), /class="math"/);
});

test("table_has_aligned_cells_and_code_with_bars", async () => {
  const table = await page.evaluate(() =>
    window.render("| a | b |\n|:-:|--:|\n| `x|y` | 2 |\n| 3 |"),
  );
  assert.match(
    table,
    /<th class="align-center" scope="col">a<\/th><th class="align-right" scope="col">b<\/th>/,
  );
  assert.match(
    table,
    /<td class="align-center"><code>x\|y<\/code><\/td><td class="align-right">2<\/td>/,
  );
  assert.equal(table.match(/<tr>/g).length, 3);
});

test("open_code_block_is_shown_while_it_streams", async () => {
  const found = await page.evaluate(() => {
    const markdown = new window.Markdown("a\n\n```py\nx = ");
    const first = markdown.node.firstChild;
    markdown.update("a\n\n```py\nx = 1\n```\nend");
    return [
      markdown.node.firstChild === first,
      markdown.node.querySelector("pre").innerText,
      markdown.node.lastChild.textContent,
    ];
  });
  assert.deepEqual(found, [true, "x = 1", "end"]);
});

test("joined_parts_give_the_text_of_highlighted_code", async () => {
  for (const [language, code] of [
    ["rust", 'let c = \'x\'; // a\nlet s = "a\\"b";'],
    ["python", "def f():\n    '''doc'''\n    return 0x1F"],
    ["js", "const a = `x ${1}`; /* open"],
    ["html", '<a href="x">b</a>'],
    ["sql", "SELECT 'a' -- b"],
    ["diff", "+a\n-b\n c"],
    ["none", "a < b"],
  ]) {
    const text = await page.evaluate(
      (code, language) =>
        window
          .highlight(code, language)
          .map(node => node.textContent)
          .join(""),
      code,
      language,
    );
    assert.equal(text, code, language);
  }
});

test("hostile_text_is_rendered_in_time", async () => {
  const parts = [
    "*",
    "**a ",
    "[",
    "[a](",
    "`",
    "``` ",
    "$",
    "\\(",
    "_a ",
    "> ",
    "- ",
    "|",
    "~~",
    "<http://",
    "h",
    "(((",
    "#",
  ];
  for (const part of parts) {
    const ms = await page.evaluate(part => {
      const start = performance.now();
      window.render(part.repeat(20_000 / part.length));
      window.render(`${part}\n`.repeat(20_000 / part.length));
      window.highlight(part.repeat(20_000 / part.length), "ts");
      return performance.now() - start;
    }, part);
    assert.ok(ms < 3000, `${JSON.stringify(part)} took ${Math.round(ms)} ms`);
  }
});

test("hostile_formula_is_refused_or_harmless", async () => {
  const convert = tex =>
    page.evaluate(tex => {
      const box = document.createElement("div");
      try {
        box.append(window.convert(tex, false));
      } catch (error) {
        return `refused: ${error.name}`;
      }
      return box.innerHTML;
    }, tex);
  assert.match(await convert("\\frac{1}{2}"), /<mfrac>/);
  const refused = [
    "\\href{javascript:alert(1)}{x}",
    "\\includegraphics{https://x.example/a.png}",
    "\\style{background:url(https://x.example)}{x}",
    "\\class{x}{y}",
    "\\def\\a{\\a\\a}\\a",
    "{".repeat(5000),
  ];
  for (const tex of refused) assert.match(await convert(tex), /^refused: /, tex.slice(0, 40));
  assert.match(await convert("\\text{<img src=x>}"), /&lt;img/);
  assert.match(await convert("\\rule{1000em}{1000em}"), /width="20em"/);
});
