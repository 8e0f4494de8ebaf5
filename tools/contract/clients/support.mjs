// What the Node clients share; see support.py.

export const URL_ = process.env.LANNER_URL ?? "http://127.0.0.1:11436";
export const KEY = process.env.LANNER_KEY ?? "none";
export const MODEL = "merlin";
export const QUESTION = "What is the weather in Oslo?";
export const TOO_LONG = "owl ".repeat(9000);
export const ENDLESS_TOKENS = 6000;
const CELLS = [
  "chat", "stream", "tools_auto", "tools_required", "tools_named", "structured_output",
  "completions", "responses", "messages", "embeddings", "errors", "cancel",
];

export function assert(condition, detail) {
  if (!condition) throw new Error(JSON.stringify(detail) ?? String(detail));
}

export async function checkRaises(call, check) {
  let result;
  try {
    result = await call();
  } catch (error) {
    assert(check(error), { error: String(error), status: error.status ?? error.statusCode });
    return error;
  }
  throw new Error(`no error, but ${JSON.stringify(result)}`.slice(0, 300));
}

async function running() {
  const reply = await fetch(`${URL_}/health`, { headers: { Authorization: `Bearer ${KEY}` } });
  return (await reply.json()).running;
}

/** Closing an endless answer's stream ends its request at once, long before its last token. */
export async function checkFreed(close, seconds = 10) {
  assert((await running()) === 1, "no request runs");
  await close();
  const end = Date.now() + seconds * 1000;
  while (await running()) {
    assert(Date.now() < end, `the server still computes ${seconds} s after the client closed`);
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}

export async function report(cells) {
  const missing = CELLS.filter((cell) => !(cell in cells));
  const unknown = Object.keys(cells).filter((cell) => !CELLS.includes(cell));
  assert(!missing.length && !unknown.length, { missing, unknown });
  for (const [cell, checks] of Object.entries(cells)) {
    if (typeof checks === "string") {
      console.log(JSON.stringify({ cell, reason: checks }));
      continue;
    }
    for (const check of checks) {
      try {
        await check();
        console.log(JSON.stringify({ cell, check: check.name, ok: true }));
      } catch (error) {
        console.log(JSON.stringify({ cell, check: check.name, ok: false, detail: String(error) }));
      }
    }
  }
}
