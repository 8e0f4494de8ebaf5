// A server with the built-in model, a hub on loopback, and a browser, for the tests of the page.

import { spawn } from "node:child_process";
import { createHash } from "node:crypto";
import { existsSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
import { createServer } from "node:http";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import puppeteer from "puppeteer-core";

const root = join(dirname(fileURLToPath(import.meta.url)), "../..");
export const REPO = "org/tiny";
const COMMIT = "c0".repeat(20);

/** A hub with the built-in model's files as `org/tiny`, slow enough to see the progress. */
export async function hub() {
  const folder = join(root, "models/merlin");
  const names = [
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
  ];
  const files = new Map(names.map(name => [name, readFileSync(join(folder, name))]));
  const sha256 = bytes => createHash("sha256").update(bytes).digest("hex");
  const sha1 = bytes =>
    createHash("sha1").update(`blob ${bytes.length}\0`).update(bytes).digest("hex");
  const isLarge = name => name.endsWith(".safetensors");
  const etag = (name, bytes) => (isLarge(name) ? sha256(bytes) : sha1(bytes));
  const siblings = [...files].map(([name, bytes]) => ({
    rfilename: name,
    size: bytes.length,
    blobId: sha1(bytes),
    ...(isLarge(name)
      ? { lfs: { sha256: sha256(bytes), size: bytes.length, pointerSize: 130 } }
      : {}),
  }));
  const server = createServer(async (request, response) => {
    const path = new URL(request.url, "http://hub").pathname;
    if (path === `/api/models/${REPO}/revision/main`) {
      response.setHeader("Content-Type", "application/json");
      return response.end(JSON.stringify({ id: REPO, sha: COMMIT, siblings }));
    }
    const name = path.startsWith(`/${REPO}/resolve/${COMMIT}/`) ? path.split("/").at(-1) : "";
    const bytes = files.get(name);
    if (!bytes) {
      response.writeHead(404, { "X-Error-Code": "RepoNotFound" });
      return response.end("{}");
    }
    response.writeHead(200, {
      "Content-Length": bytes.length,
      ETag: `"${etag(name, bytes)}"`,
      "X-Repo-Commit": COMMIT,
    });
    for (let at = 0; at < bytes.length; at += 1 << 20) {
      response.write(bytes.subarray(at, at + (1 << 20)));
      await new Promise(resolve => setTimeout(resolve, 30));
    }
    response.end();
  });
  await new Promise(resolve => server.listen(0, "127.0.0.1", resolve));
  return { url: `http://127.0.0.1:${server.address().port}`, close: () => server.close() };
}

/** Starts `lanner serve` with these flags, or `"stored"` for a store, and waits until it answers. */
export async function serve(program, endpoint, ...flags) {
  const folder = mkdtempSync(join(tmpdir(), "lanner-page-"));
  const env = {
    ...process.env,
    HF_ENDPOINT: endpoint,
    HF_HUB_CACHE: join(folder, "hub"),
    HF_HUB_OFFLINE: "",
  };
  // The pages of most tests keep their conversations apart, in browsers of their own.
  const stored = flags.includes("stored");
  const store = stored ? ["--store", join(folder, "store.db")] : ["--no-store"];
  const own = flags.filter(flag => flag !== "stored");
  const child = spawn(program, ["serve", "--port", "0", "--disk-cache", "off", ...store, ...own], {
    env,
    stdio: ["ignore", "ignore", "pipe"],
  });
  let log = "";
  const url = await new Promise((resolve, reject) => {
    child.once("exit", () => reject(new Error(`the server ended:\n${log}`)));
    child.stderr.on("data", data => {
      log += data;
      const found = /(http:\/\/[0-9.:]+)\/v1/.exec(log);
      if (found) resolve(found[1]);
    });
  });
  const stop = () =>
    new Promise(resolve => {
      child.removeAllListeners("exit");
      child.once("exit", resolve);
      child.kill("SIGINT");
    }).then(() => rmSync(folder, { recursive: true, force: true }));
  return { url, stop, log: () => log };
}

export async function browser() {
  const found = [
    process.env.CHROMIUM,
    "/usr/bin/chromium",
    "/usr/bin/chromium-browser",
    "/usr/bin/google-chrome",
  ].find(path => path && existsSync(path));
  if (!found) throw new Error("no Chromium: install Debian's chromium, or name it in CHROMIUM");
  // A container has no user namespaces for the sandbox.
  return puppeteer.launch({
    executablePath: found,
    args: ["--no-sandbox", "--disable-gpu", "--force-color-profile=srgb", "--lang=en"],
  });
}

/** A page of its own profile, which records every error of the console. */
export async function openPage(
  chromium,
  url,
  { width = 1280, height = 800, settings = null } = {},
) {
  const context = await chromium.createBrowserContext();
  const page = await context.newPage();
  await page.setViewport({ width, height });
  const errors = [];
  page.on("console", message => message.type() === "error" && errors.push(message.text()));
  page.on("pageerror", error => errors.push(String(error)));
  if (settings) {
    await page.evaluateOnNewDocument(
      text =>
        localStorage.setItem("lanner-settings", localStorage.getItem("lanner-settings") ?? text),
      JSON.stringify(settings),
    );
  }
  await page.goto(url);
  return { page, errors, close: () => context.close() };
}

/** Waits until `check`, run in the page, is true. */
export async function until(page, check, ...args) {
  const end = Date.now() + 10_000;
  while (Date.now() < end) {
    const value = await page.evaluate(check, ...args);
    if (value) return value;
    await new Promise(resolve => setTimeout(resolve, 40));
  }
  throw new Error(
    `never true: ${check} ${JSON.stringify(args)}\n${await page.evaluate(() => document.body.innerText)}`,
  );
}

export function pause(milliseconds) {
  return new Promise(resolve => setTimeout(resolve, milliseconds));
}
