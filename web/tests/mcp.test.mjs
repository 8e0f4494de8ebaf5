// Tools of MCP servers: the page asks before a call, and shows what was made of it.

import assert from "node:assert/strict";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { after, test } from "node:test";
import { fileURLToPath } from "node:url";
import { answer, checkAccessibility, program, send, set, shared, shot } from "./actions.mjs";
import { openPage, serve, until } from "./support.mjs";

const fake = join(dirname(fileURLToPath(import.meta.url)), "fake-mcp.mjs");
let folder;
let server;

after(async () => {
  await server?.stop();
  if (folder) rmSync(folder, { recursive: true, force: true });
});

/** Hooks of this file may run before those that start the hub. */
async function start() {
  if (server) return;
  folder = mkdtempSync(join(tmpdir(), "lanner-mcp-"));
  const file = join(folder, "mcp.json");
  const servers = { weather: { command: process.execPath, args: [fake] } };
  writeFileSync(file, JSON.stringify({ mcpServers: servers }));
  server = await serve(program, shared.hub.url, "--mcp", file);
}

/** A page whose model must call the tool of the server. */
function inPageWithTools(name, run) {
  test(name, { timeout: 120_000 }, async () => {
    await start();
    const settings = { temperature: 0, max_tokens: 60, thinking: "off" };
    const { page, errors, close } = await openPage(shared.chromium, server.url, { settings });
    try {
      await until(page, () => document.querySelector("#setting-mcp-weather"));
      await set(page, "mcp-weather");
      await set(page, "tool_choice", "required");
      await run(page);
      assert.deepEqual(errors, []);
    } finally {
      await close();
    }
  });
}

const click = (page, text) =>
  page.evaluate(text => {
    const all = [...document.querySelectorAll(".tool-calls button")];
    all.find(button => button.textContent === text).click();
  }, text);

inPageWithTools("call_is_made_once_it_is_allowed", async page => {
  await send(page, "How is the weather in Oslo?");
  assert.match(await answer(page), /Wants to call weather \/ forecast[\s\S]*Oslo/);
  await checkAccessibility(page, "call to approve");
  await shot(page, "mcp-approval");
  await set(page, "tool_choice", "auto");
  await click(page, "Allow once");
  await answer(page, 2);
  const made = await page.$eval(".mcp-call", node => node.textContent);
  assert.match(made, /Called weather \/ forecast[\s\S]*7 degrees in Oslo/);
  await page.click(".mcp-call summary");
  await checkAccessibility(page, "call that was made");
  await shot(page, "mcp-call");
});

inPageWithTools("refused_call_is_not_made", async page => {
  await send(page, "How is the weather in Oslo?");
  await answer(page);
  await set(page, "tool_choice", "auto");
  await click(page, "Refuse");
  await answer(page, 2);
  const made = await page.$eval(".mcp-call", node => node.textContent);
  assert.match(made, /Failed: weather \/ forecast[\s\S]*The user refused this call/);
});

inPageWithTools("call_is_made_without_asking_where_that_is_set", async page => {
  await set(page, "mcp_approval", "never");
  await send(page, "How is the weather in Oslo?");
  await answer(page);
  assert.match(await page.$eval(".mcp-call", node => node.textContent), /7 degrees in Oslo/);
});
