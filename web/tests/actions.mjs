// What the tests do with the page, and the server and the browser that they share.
// LANNER names the program, SHOTS a folder for screenshots.

import assert from "node:assert/strict";
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { browser, hub, openPage, serve, until } from "./support.mjs";

export const program = process.env.LANNER ?? "../target/release/lanner";
const shots = process.env.SHOTS;
const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");

/** An answer with a heading, formulas, a list, a table and code. */
export const RICH =
  "## Sum\n\nThe sum is $\\frac{n(n+1)}{2}$ for *all* n:\n\n$$\\sum_{k=1}^{n} k = \\frac{n(n+1)}{2}$$\n\n- `loop`: slow\n- formula: fast\n\n" +
  "| n | sum |\n|---|---:|\n| 10 | 55 |\n| 100 | 5050 |\n\n```rust\n// Gauss\nfn sum(n: u64) -> u64 {\n    n * (n + 1) / 2\n}\n```";

/** `hub`, `server` and `chromium`, while the tests run. */
export const shared = {};

before(async () => {
  shared.hub = await hub();
  shared.server = await serve(program, shared.hub.url);
  shared.chromium = await browser();
  if (shots) mkdirSync(shots, { recursive: true });
});

after(async () => {
  await shared.chromium?.close();
  await shared.server?.stop();
  shared.hub?.close();
});

/** Runs a test in a fresh page at temperature 0, and fails if the console had an error. */
export function inPage(name, run, options = {}) {
  test(name, { timeout: 120_000 }, async () => {
    const opened = await openPage(shared.chromium, shared.server.url, {
      ...options,
      settings: { temperature: 0 },
    });
    try {
      await until(opened.page, () => document.querySelector("#model").options.length > 1);
      await run(opened.page, opened);
      assert.deepEqual(opened.errors, []);
    } finally {
      await opened.close();
    }
  });
}

export async function send(page, text) {
  await page.focus("#prompt");
  await page.keyboard.type(text);
  await page.keyboard.press("Enter");
}

/** Waits for the end of the `n`th answer on the screen and returns its text. */
export async function answer(page, n = 1) {
  await until(
    page,
    n => {
      const all = document.querySelectorAll(".message.assistant");
      return (
        all.length >= n &&
        all[n - 1].getAttribute("aria-busy") === "false" &&
        all[n - 1].querySelector("footer button")
      );
    },
    n,
  );
  return page.evaluate(
    n => document.querySelectorAll(".message.assistant")[n - 1].querySelector(".body").innerText,
    n,
  );
}

/** Changes a setting, and leaves its group open. */
export async function set(page, name, value) {
  await page.evaluate(
    (name, value) => {
      if (document.querySelector("#settings").hidden)
        document.querySelector("#settings-button").click();
      const input = document.querySelector(`#setting-${name}`);
      if (input.type === "checkbox") input.click();
      else {
        input.value = value;
        input.dispatchEvent(new Event(input.tagName === "SELECT" ? "change" : "input"));
      }
    },
    name,
    value,
  );
}

/** Makes the model write exactly this text, by a regular expression. */
export async function dictate(page, text) {
  await set(page, "format", "regex");
  await set(page, "regex", text.replace(/[\\^$.*+?()[\]{}|/#&~-]/g, "\\$&").replace(/\n/g, "\\n"));
}

/** Clicks a button by its name; the list that has it may be drawn again at any time. */
export async function press(page, name) {
  await until(
    page,
    name => {
      const button = document.querySelector(`[aria-label="${name}"]`);
      button?.click();
      return button !== null;
    },
    name,
  );
}

export async function shot(page, name) {
  if (!shots) return;
  writeFileSync(join(shots, `${name}.png`), await page.screenshot());
}

export async function checkAccessibility(page, state) {
  await page.evaluate(axe);
  const { violations } = await page.evaluate(() =>
    window.axe.run(document, { resultTypes: ["violations"] }),
  );
  const found = violations.map(
    one =>
      `${one.id}: ${one.nodes
        .map(node => `${node.target.join(" ")}: ${node.failureSummary.replace(/\s+/g, " ")}`)
        .slice(0, 3)
        .join("; ")}`,
  );
  assert.deepEqual(found, [], state);
}
