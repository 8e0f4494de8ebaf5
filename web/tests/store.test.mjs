// The page with a server that has a store.

import assert from "node:assert/strict";
import { after, test } from "node:test";
import { answer, checkAccessibility, program, send, shared, shot } from "./actions.mjs";
import { openPage, serve, until } from "./support.mjs";

let stored;

after(() => stored?.stop());

/** Hooks of this file may run before those that start the hub. */
async function start() {
  stored ??= await serve(program, shared.hub.url, "stored");
}

/** Runs in a fresh browser profile. */
async function inProfile(run, options = {}) {
  await start();
  const opened = await openPage(shared.chromium, stored.url, {
    ...options,
    settings: { temperature: 0 },
  });
  try {
    await until(opened.page, () => document.querySelector("#model").options.length > 1);
    await run(opened.page);
    assert.deepEqual(opened.errors, []);
  } finally {
    await opened.close();
  }
}

const titles = page =>
  page.$$eval("#conversations .conversation span", nodes => nodes.map(node => node.innerText));

test("conversations_are_kept_on_the_server", { timeout: 120_000 }, async () => {
  await inProfile(async page => {
    await send(page, "What is 17 + 25?");
    assert.match(await answer(page), /42/);
    await page.click('[aria-label="Regenerate answer"]');
    await until(
      page,
      () => document.querySelector(".message.assistant .siblings span")?.innerText === "2 / 2",
    );
    await answer(page);
  });
  await inProfile(async page => {
    await until(page, () => document.querySelector("#conversations .conversation"));
    assert.deepEqual(await titles(page), ["What is 17 + 25?"]);
    await page.type("#search", "17 wha");
    await until(page, () => document.querySelector("#conversations small")?.innerText.includes("17"));
    await page.click("#conversations .conversation");
    assert.match(await answer(page), /42/);
    const branches = await page.$eval(".message.assistant .siblings span", node => node.innerText);
    assert.equal(branches, "2 / 2");
    const read = await (await fetch(`${stored.url}/v1/history`)).json();
    assert.deepEqual([read.data.length, read.data[0].messages], [1, 3]);
    await page.click('[aria-label^="Delete What"]');
    await page.click("dialog .danger");
    await until(page, () =>
      document.querySelector("#conversations").innerText.includes("No conversation has these words"),
    );
  });
  assert.deepEqual((await (await fetch(`${stored.url}/v1/history`)).json()).data, []);
});

test("long_lists_come_in_parts", { timeout: 120_000 }, async () => {
  await start();
  const put = (id, body) =>
    fetch(`${stored.url}/v1/history/${id}`, {
      method: "PUT",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify(body),
    });
  for (let i = 0; i < 60; i++) await put(`c${i}`, { title: `Part ${i}`, created: i, updated: i });
  await inProfile(async page => {
    await until(page, () => document.querySelectorAll("#conversations li").length === 50);
    await checkAccessibility(page, "long list");
    await page.click("#more");
    await until(page, () => document.querySelectorAll("#conversations li").length === 60);
    assert.equal(await page.$("#more"), null);
  });
  for (let i = 0; i < 60; i++) await fetch(`${stored.url}/v1/history/c${i}`, { method: "DELETE" });
});

test("conversations_of_the_browser_are_moved_to_the_server", { timeout: 120_000 }, async () => {
  await inProfile(async page => {
    await page.evaluate(
      () =>
        new Promise((resolve, reject) => {
          const opening = indexedDB.open("lanner", 1);
          opening.onupgradeneeded = () =>
            opening.result
              .createObjectStore("conversations", { keyPath: "id" })
              .createIndex("updated", "updated");
          opening.onerror = reject;
          opening.onsuccess = () => {
            const store = opening.result
              .transaction("conversations", "readwrite")
              .objectStore("conversations");
            const message = { id: "m", parent: null, role: "user", text: "kept here", created: 1 };
            store.put({
              id: "old",
              title: "Kept here",
              created: 1,
              updated: 1,
              leaf: "m",
              messages: { m: message },
              settings: {},
            }).onsuccess = () => {
              opening.result.close();
              resolve();
            };
          };
        }),
    );
    await page.reload();
    await until(page, () => document.querySelector("#move"));
    await page.click("#move");
    await until(page, () => !document.querySelector("#move"));
    await until(page, () =>
      document.querySelector("#conversations").innerText.includes("Kept here"),
    );
    await page.reload();
    await until(page, () => document.querySelector("#conversations .conversation"));
    assert.equal(await page.$("#move"), null);
  });
  const { messages } = await (await fetch(`${stored.url}/v1/history/old`)).json();
  assert.equal(messages.m.text, "kept here");
});

test("history_of_the_engine_is_drawn", { timeout: 120_000 }, async () => {
  await inProfile(
    async page => {
      await send(page, "What is 1 + 2?");
      await answer(page);
      await page.click("#nav-engine");
      await until(page, () =>
        /last 24 hours[\s\S]*merlin[\s\S]*In 30 days: \d+ requests/.test(
          document.querySelector("#panel-history").innerText,
        ),
      );
      const heights = await page.$$eval("#panel-history svg.chart rect", bars =>
        bars.map(bar => Number(bar.getAttribute("height"))),
      );
      assert.ok(heights.some(height => height > 0));
      await checkAccessibility(page, "history");
      await shot(page, "history");
    },
    { width: 1180, height: 1180 },
  );
});
