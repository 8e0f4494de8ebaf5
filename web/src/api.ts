/** Requests to the server that sent this page. Asks for an API key when the server wants one. */

import { el } from "./dom";

const KEY = "lanner-api-key";

/** An error of the server, with its own sentence. */
export class ApiError extends Error {
  constructor(
    readonly status: number,
    message: string,
    readonly code: string | null,
    readonly retryAfter: string | null,
  ) {
    super(message);
  }
}

interface ErrorBody {
  error?: { message?: string; code?: string | null };
}

/** Sends a request; after a 401 it asks for the key and tries again. */
export async function request(
  method: string,
  path: string,
  body?: unknown,
  signal?: AbortSignal,
): Promise<Response> {
  for (;;) {
    const response = await send(method, path, body, signal);
    if (response.ok) return response;
    const error = await errorOf(response);
    if (response.status !== 401) throw error;
    await askForKey(error.message);
  }
}

export async function getJson<T>(path: string, signal?: AbortSignal): Promise<T> {
  return (await request("GET", path, undefined, signal)).json() as Promise<T>;
}

export async function postJson<T>(path: string, body: unknown): Promise<T> {
  return (await request("POST", path, body)).json() as Promise<T>;
}

async function send(
  method: string,
  path: string,
  body: unknown,
  signal?: AbortSignal,
): Promise<Response> {
  const headers: Record<string, string> = {};
  const key = sessionStorage.getItem(KEY);
  if (key) headers.Authorization = `Bearer ${key}`;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  try {
    // A relative path also works after a proxy that serves the page below a path.
    return await fetch(path, {
      method,
      headers,
      signal,
      body: body === undefined ? undefined : JSON.stringify(body),
    });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new ApiError(0, "The server does not answer. Is it still running?", null, null);
  }
}

async function errorOf(response: Response): Promise<ApiError> {
  const body = (await response.json().catch(() => ({}))) as ErrorBody;
  const message = body.error?.message ?? `The server answered with status ${response.status}.`;
  return new ApiError(
    response.status,
    message,
    body.error?.code ?? null,
    response.headers.get("Retry-After"),
  );
}

let asking: Promise<void> | null = null;

/** One dialog for all requests that wait for a key. */
function askForKey(reason: string): Promise<void> {
  asking ??= keyDialog(reason).finally(() => {
    asking = null;
  });
  return asking;
}

function keyDialog(reason: string): Promise<void> {
  return new Promise((resolve, reject) => {
    const input = el("input", { type: "password", id: "key", autocomplete: "off", required: true });
    const form = el(
      "form",
      { method: "dialog" },
      el("h2", {}, "API key"),
      el("p", {}, capitalised(reason)),
      el("label", { for: "key" }, "Key"),
      input,
      el(
        "p",
        { class: "hint" },
        "It is kept until this tab is closed, and sent to this server only.",
      ),
      el("div", { class: "buttons" }, el("button", { class: "primary", value: "ok" }, "Continue")),
    );
    const dialog = el("dialog", { "aria-label": "API key", id: "key-dialog" }, form);
    dialog.addEventListener("close", () => {
      dialog.remove();
      if (dialog.returnValue !== "ok" || !input.value)
        return reject(new ApiError(401, "No API key was given.", null, null));
      sessionStorage.setItem(KEY, input.value.trim());
      resolve();
    });
    document.body.append(dialog);
    dialog.showModal();
  });
}

export function capitalised(sentence: string): string {
  return sentence.charAt(0).toUpperCase() + sentence.slice(1);
}

/** The data of server-sent events, until `[DONE]` or the end. */
export async function* events<T>(response: Response): AsyncGenerator<T> {
  for await (const line of lines(response)) {
    if (!line.startsWith("data: ")) continue;
    const data = line.slice(6);
    if (data === "[DONE]") return;
    yield parsed<T>(data);
  }
}

/** Lines of JSON. */
export async function* jsonLines<T>(response: Response): AsyncGenerator<T> {
  for await (const line of lines(response)) {
    if (line) yield parsed<T>(line);
  }
}

/** An event with an error ends the stream. */
function parsed<T>(data: string): T {
  const value = JSON.parse(data) as T & ErrorBody;
  if (value.error)
    throw new ApiError(
      200,
      value.error.message ?? "The answer failed.",
      value.error.code ?? null,
      null,
    );
  return value;
}

async function* lines(response: Response): AsyncGenerator<string> {
  if (!response.body) return;
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      const all = (rest + (value ?? "")).split("\n");
      rest = done ? "" : (all.pop() ?? "");
      yield* all;
      if (done) return;
    }
  } finally {
    // Cancels the request if the caller has stopped reading.
    reader.cancel().catch(() => undefined);
  }
}
