// Vercel's ai package with its providers openai, openai-compatible and anthropic.

import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { APICallError, Output, embedMany, generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";
import {
  ENDLESS_TOKENS, KEY, MODEL, QUESTION, TOO_LONG, URL_, assert, checkFreed, checkRaises, report,
} from "./support.mjs";

const baseURL = `${URL_}/v1`;
const openai = (apiKey = KEY) => createOpenAI({ baseURL, apiKey });
const anthropic = (apiKey = KEY) => createAnthropic({ baseURL, apiKey });
const compatible = (apiKey = KEY) =>
  createOpenAICompatible({
    name: "lanner", baseURL, apiKey, includeUsage: true, supportsStructuredOutputs: true,
  });
const wires = {
  chat: (key, id = MODEL) => openai(key).chat(id),
  responses: (key, id = MODEL) => openai(key).responses(id),
  compatible: (key, id = MODEL) => compatible(key)(id),
  messages: (key, id = MODEL) => anthropic(key)(id),
};
const usual = { temperature: 0, maxOutputTokens: 200, maxRetries: 0 };
const Bird = z.object({ bird: z.enum(["owl", "hare"]), legs: z.literal([2, 4]) });

async function onWires(check, names = Object.keys(wires)) {
  for (const name of names) {
    try {
      await check(wires[name], name);
    } catch (error) {
      throw new Error(`${name}: ${error}`);
    }
  }
}

function weather(cities) {
  const execute = ({ city }) => {
    cities.push(city);
    return { temperature: 7 };
  };
  const inputSchema = z.object({ city: z.string() });
  return { get_weather: tool({ description: "Get the weather for a city", inputSchema, execute }) };
}

const ask = (wire, more) => generateText({ model: wire(), prompt: "Say hello.", ...usual, ...more });

async function checkText(wire) {
  const answer = await ask(wire, { system: "Be brief." });
  assert(answer.text && answer.usage.outputTokens > 0, answer.steps);
  assert(["stop", "length"].includes(answer.finishReason), answer.finishReason);
}

const chat = () => onWires(checkText, ["chat", "compatible"]);

async function responses() {
  await onWires(checkText, ["responses"]);
  const first = await ask(wires.responses);
  const previousResponseId = first.providerMetadata.openai.responseId;
  const next = await ask(wires.responses, { providerOptions: { openai: { previousResponseId } } });
  assert(previousResponseId.startsWith("resp_") && next.text, previousResponseId);
}

async function messages() {
  await onWires(checkText, ["messages"]);
  const thinking = { type: "enabled", budgetTokens: 1024 };
  const answer = await ask(wires.messages, {
    prompt: "What is 17 + 25?", maxOutputTokens: 2000, providerOptions: { anthropic: { thinking } },
  });
  assert(answer.reasoningText && answer.text, answer.content);
}

const stream = () =>
  onWires(async (wire) => {
    const result = streamText({ model: wire(), prompt: "Say hello.", ...usual });
    let text = "";
    for await (const piece of result.textStream) text += piece;
    assert(text && text === (await ask(wire)).text, text);
    assert((await result.usage).outputTokens > 0, await result.usage);
  });

const tools_auto = () =>
  onWires(async (wire) => {
    const cities = [];
    const answer = await ask(wire, {
      prompt: QUESTION, tools: weather(cities), stopWhen: stepCountIs(3),
    });
    assert(cities.join() === "Oslo" && answer.text, { cities, text: answer.text });
  });

const tools_stream = () =>
  onWires(async (wire) => {
    const cities = [];
    const result = streamText({
      model: wire(), prompt: QUESTION, ...usual, tools: weather(cities), stopWhen: stepCountIs(3),
    });
    assert((await result.text) && cities.join() === "Oslo", cities);
    assert((await result.steps)[0].finishReason === "tool-calls", await result.steps);
  });

const chosen = (toolChoice) =>
  onWires(async (wire) => {
    const cities = [];
    const answer = await ask(wire, { tools: weather(cities), toolChoice });
    assert(cities.length > 0 && answer.toolCalls[0].toolName === "get_weather", answer.content);
  });

const tools_required = () => chosen("required");
const tools_named = () => chosen({ type: "tool", toolName: "get_weather" });

const structured_output = () =>
  onWires(async (wire) => {
    const more = { prompt: "Name a bird.", output: Output.object({ schema: Bird }) };
    Bird.parse((await ask(wire, more)).output);
    const result = streamText({ model: wire(), ...usual, ...more });
    Bird.parse(await result.output);
  });

async function completions() {
  for (const model of [openai().completion(MODEL), compatible().completionModel(MODEL)]) {
    const answer = await generateText({ model, prompt: "The owl", ...usual, maxOutputTokens: 5 });
    assert(answer.text, answer.content);
  }
}

async function embeddings() {
  for (const model of [openai().embedding(MODEL), compatible().embeddingModel(MODEL)]) {
    const { embeddings } = await embedMany({ model, values: ["an owl", "a stone"] });
    assert(embeddings.length === 2 && embeddings[0].join() !== embeddings[1].join(), embeddings);
  }
}

const is = (status, words) => (error) =>
  APICallError.isInstance(error) && error.statusCode === status && error.message.includes(words);

const bad_request = () =>
  onWires(async (wire) => {
    await checkRaises(() => ask(wire, { topP: -1, temperature: undefined }), is(400, "top_p"));
    await checkRaises(() => ask(() => wire(KEY, "gpt-9")), is(404, "gpt-9"));
  });

const context_overflow = () =>
  onWires((wire) => checkRaises(() => ask(wire, { prompt: TOO_LONG }), is(400, "maximum context length is")));

const wrong_key = () => onWires((wire) => checkRaises(() => ask(() => wire("wrong")), is(401, "key")));

const cancel = () =>
  onWires(async (wire) => {
    const stop = new AbortController();
    const result = streamText({
      model: wire(), ...usual, maxOutputTokens: ENDLESS_TOKENS, abortSignal: stop.signal,
      // No option keeps an answer from ending; a minimum in a schema does.
      prompt: "Count.", output: Output.object({ schema: z.object({ n: z.array(z.literal(1)).min(ENDLESS_TOKENS) }) }),
      onError() {},
    });
    await result.textStream[Symbol.asyncIterator]().next();
    await checkFreed(() => stop.abort());
  });

await report({
  chat: [chat],
  stream: [stream],
  tools_auto: [tools_auto, tools_stream],
  tools_required: [tools_required],
  tools_named: [tools_named],
  structured_output: [structured_output],
  completions: [completions],
  responses: [responses],
  messages: [messages],
  embeddings: [embeddings],
  errors: [bad_request, context_overflow, wrong_key],
  cancel: [cancel],
});
