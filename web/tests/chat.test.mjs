// Conversations in headless Chromium, against a server with the built-in model.

import assert from "node:assert/strict";
import { test } from "node:test";
import {
  answer,
  checkAccessibility,
  dictate,
  inPage,
  press,
  RICH,
  send,
  set,
  shared,
  shot,
} from "./actions.mjs";
import { openPage, pause, until } from "./support.mjs";

inPage("message_sent_with_enter_is_answered_with_figures", async page => {
  await send(page, "What is 17 + 25?");
  assert.match(await answer(page), /42/);
  assert.match(
    await page.$eval(".figures summary", node => node.innerText),
    /\d+ tokens · .* tok\/s · first after/,
  );
  assert.equal(
    await page.$eval("#conversations .conversation span", node => node.innerText),
    "What is 17 + 25?",
  );
  await page.reload();
  await until(page, () => document.querySelector("#conversations .conversation"));
  await page.click("#conversations .conversation");
  assert.match(await answer(page), /42/);
});

inPage("reasoning_is_folded", async page => {
  await set(page, "thinking", "on");
  await send(page, "What is 17 + 25?");
  await answer(page);
  const found = await page.$eval("details.reasoning", node => [
    node.open,
    node.textContent.length > 12,
  ]);
  assert.deepEqual(found, [false, true]);
});

inPage("running_answer_stops_on_escape", async page => {
  await set(page, "format", "regex");
  await set(page, "regex", "[a-z ]{4000}");
  await send(page, "Go on for ever.");
  await until(
    page,
    () => document.querySelector(".message.assistant .markdown")?.innerText.length > 40,
  );
  assert.equal(await page.$eval("#send", node => node.getAttribute("aria-label")), "Stop");
  await page.keyboard.press("Escape");
  assert.match(await answer(page), /Stopped\./);
  const running = () =>
    fetch(`${shared.server.url}/health`)
      .then(reply => reply.json())
      .then(health => health.running);
  for (let tries = 0; tries < 100 && (await running()) > 0; tries++) await pause(50);
  assert.equal(await running(), 0);
});

inPage("edited_message_makes_a_branch_that_can_be_left_again", async page => {
  await send(page, "What is 2 + 3?");
  await answer(page);
  await page.click('[aria-label="Edit message"]');
  await page.keyboard.down("Control");
  await page.keyboard.press("A");
  await page.keyboard.up("Control");
  await page.keyboard.type("What is 10 + 20?");
  await page.click(".edit button[type=submit]");
  assert.match(await answer(page), /30/);
  assert.equal(await page.$eval(".message.user .siblings span", node => node.innerText), "2 / 2");
  await page.click('[aria-label="Previous branch"]');
  await until(
    page,
    () => document.querySelector(".message.user .plain")?.innerText === "What is 2 + 3?",
  );
  assert.match(await answer(page), /5/);
});

inPage("regenerated_answer_is_a_branch", async page => {
  await set(page, "temperature", "1");
  await send(page, "Tell me a short story.");
  await answer(page);
  await page.click('[aria-label="Regenerate answer"]');
  await until(
    page,
    () => document.querySelector(".message.assistant .siblings span")?.innerText === "2 / 2",
  );
  await answer(page);
});

const HOSTILE = `<script>document.title = "owned"</script> <img src=x onerror="document.title='owned'"> [run](javascript:alert(1)) **bold**`;

inPage("script_in_an_answer_is_text", async page => {
  let asked = false;
  page.on("dialog", dialog => {
    asked = true;
    void dialog.dismiss();
  });
  await dictate(page, HOSTILE);
  await send(page, "Write it.");
  const text = await answer(page);
  assert.ok(text.includes('<script>document.title = "owned"</script>'), text);
  await pause(200);
  const found = await page.evaluate(() => {
    const body = document.querySelector(".message.assistant .body");
    return [
      document.title.includes("owned"),
      body.querySelectorAll("script, img, a, iframe").length,
      body.querySelectorAll("strong").length,
    ];
  });
  assert.deepEqual(found, [false, 0, 1]);
  assert.equal(asked, false);
});

inPage("markdown_maths_and_code_are_rendered", async page => {
  await dictate(page, RICH);
  await send(page, "How do I sum the numbers up to n?");
  await answer(page);
  await until(page, () => document.querySelectorAll(".message.assistant math").length === 2);
  const found = await page.$eval(".message.assistant .markdown", node => [
    node.querySelector("h3")?.innerText,
    node.querySelectorAll("tbody tr").length,
    node.querySelectorAll("li").length,
    node.querySelector(".tok-comment")?.innerText,
    [...node.querySelectorAll(".tok-keyword")]
      .map(one => one.innerText)
      .slice(0, 2)
      .join(" "),
  ]);
  assert.deepEqual(found, ["Sum", 2, 2, "// Gauss", "fn u64"]);
  await checkAccessibility(page, "rich answer");
  await page.click("#settings-close");
  await page.$eval("#scroller", node => {
    node.scrollTop = 0;
  });
  await shot(page, "chat");
});

inPage("schema_makes_the_answer_json", async page => {
  await set(page, "format", "json_schema");
  await set(
    page,
    "schema",
    '{"type": "object", "properties": {"name": {"type": "string", "maxLength": 12}, "legs": {"type": "integer"}}, "required": ["name", "legs"], "additionalProperties": false}',
  );
  await send(page, "Describe an owl.");
  await answer(page);
  const value = JSON.parse(
    await page.$eval(".message.assistant .code code", node => node.textContent),
  );
  assert.deepEqual(Object.keys(value), ["name", "legs"]);
  await set(page, "schema", "{");
  await send(page, "Again.");
  assert.match(await answer(page, 2), /The JSON schema in the settings is not valid JSON/);
});

inPage("tool_call_takes_a_result", async page => {
  await set(
    page,
    "tools",
    '[{"name": "weather", "description": "The weather of a city", "parameters": {"type": "object", "properties": {"city": {"enum": ["Oslo"]}}, "required": ["city"]}}]',
  );
  await set(page, "tool_choice", "required");
  await send(page, "How is the weather in Oslo?");
  assert.match(await answer(page), /weather[\s\S]*Oslo/);
  await set(page, "tool_choice", "auto");
  await page.type(".tool-call textarea", '{"degrees": 7}');
  await page.click(".tool-calls button[type=submit]");
  await answer(page, 2);
  assert.equal(await page.$$eval(".message.tool", all => all.length), 1);
  await checkAccessibility(page, "tool call");
});

inPage("token_probabilities_show_alternatives_on_focus", async page => {
  await set(page, "logprobs");
  await send(page, "Name a bird.");
  await answer(page);
  await page.click('[aria-label="Token probabilities"]');
  await page.focus(".token");
  await page.keyboard.press("ArrowRight");
  const rows = await page.$$eval(".alternatives tbody tr", all => all.length);
  assert.ok(rows >= 5, `${rows} alternatives`);
  assert.equal(await page.$eval(".alternatives caption", node => node.innerText), "Token 2");
  await page.hover(".token:nth-child(3)");
  await until(page, () => document.querySelector(".alternatives caption").innerText === "Token 3");
  await checkAccessibility(page, "token probabilities");
  await page.click("#settings-close");
  await shot(page, "tokens");
});

/** A picture of 2 x 2 pixels, as a file of the clipboard or of a drop. */
const PICTURE =
  "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR42mP4z8AAAAMBAQD3A0FDAAAAAElFTkSuQmCC";

/** Pastes or drops files, each of a type. */
async function give(page, event, types) {
  await page.evaluate(
    (event, types, picture) => {
      const bytes = Uint8Array.from(atob(picture), character => character.charCodeAt(0));
      const data = new DataTransfer();
      types.forEach((type, i) => data.items.add(new File([bytes], `file ${i + 1}`, { type })));
      const options = { bubbles: true, cancelable: true };
      const given =
        event === "paste"
          ? new ClipboardEvent("paste", { ...options, clipboardData: data })
          : new DragEvent(event, { ...options, dataTransfer: data });
      document.querySelector("#prompt").dispatchEvent(given);
    },
    event,
    types,
    PICTURE,
  );
}

const shown = page => page.$$eval("#pictures img", nodes => nodes.length);

test("pictures_go_with_the_message_and_stay_in_it", { timeout: 120_000 }, async () => {
  const opened = await openPage(shared.chromium, shared.server.url, {
    settings: { temperature: 0 },
  });
  const { page } = opened;
  const sent = [];
  page.on("request", request => {
    if (request.url().endsWith("/v1/chat/completions")) sent.push(JSON.parse(request.postData()));
  });
  try {
    await until(page, () => document.querySelector("#model").options.length > 1);
    await give(page, "paste", ["image/png", "image/webp"]);
    await until(page, () => document.querySelectorAll("#pictures img").length === 2);
    await give(page, "drop", ["image/png", "application/pdf"]);
    await until(page, () => document.querySelectorAll("#pictures img").length === 3);
    await until(page, () => document.querySelector(".note.error")?.innerText.includes("no PNG"));
    await press(page, "Close this message");
    await press(page, "Remove picture 2");
    await until(page, () => document.querySelectorAll("#pictures img").length === 2);
    await checkAccessibility(page, "pictures of the next message");
    await send(page, "What is it?");
    await until(page, () => document.querySelectorAll(".message.user img").length === 2);
    assert.equal(await shown(page), 0);
    await answer(page);
    await checkAccessibility(page, "a message with pictures");
    const content = sent[0].messages.at(-1).content;
    const url = `data:image/png;base64,${PICTURE}`;
    assert.deepEqual(content, [
      { type: "image_url", image_url: { url } },
      { type: "image_url", image_url: { url } },
      { type: "text", text: "What is it?" },
    ]);
    await page.reload();
    await until(page, () => document.querySelector("#conversations .conversation"));
    await page.click("#conversations .conversation");
    await until(page, () => document.querySelectorAll(".message.user img").length === 2);
  } finally {
    await opened.close();
  }
});
