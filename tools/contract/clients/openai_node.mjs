// The official openai package for Node.

import OpenAI from "openai";
import { zodResponseFormat, zodTextFormat } from "openai/helpers/zod";
import { z } from "zod";
import {
  ENDLESS_TOKENS, KEY, MODEL, QUESTION, TOO_LONG, URL_, assert, checkFreed, checkRaises, report,
} from "./support.mjs";

const client = new OpenAI({ baseURL: `${URL_}/v1`, apiKey: KEY, maxRetries: 0 });
const model = MODEL;
const weather = {
  type: "function",
  function: {
    name: "get_weather",
    description: "Get the weather for a city",
    parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
  },
};
const messages = [{ role: "user", content: QUESTION }];
const hello = { messages: [{ role: "user", content: "Say hello." }] };
const Bird = z.object({ bird: z.enum(["owl", "hare"]), legs: z.literal([2, 4]) });
const usual = { model, messages, temperature: 0, max_tokens: 200 };
const ask = (more) => client.chat.completions.create({ ...usual, ...more });
const respond = (more) =>
  client.responses.create({ model, temperature: 0, max_output_tokens: 200, ...more });

function checkCall(choice) {
  assert(choice.finish_reason === "tool_calls", choice);
  const [call] = choice.message.tool_calls;
  assert(call.function.name === "get_weather" && call.id, call);
  return JSON.parse(call.function.arguments);
}

async function chat() {
  const answer = await ask(hello);
  assert(answer.choices[0].message.content && answer.usage.completion_tokens > 0, answer);
  assert((await client.models.list()).data[0].id === MODEL);
}

async function stream() {
  let text = "";
  for await (const chunk of await ask({ ...hello, stream: true })) {
    text += chunk.choices[0]?.delta.content ?? "";
  }
  assert(text && text === (await ask(hello)).choices[0].message.content, text);
}

async function tools_auto() {
  const answer = await ask({ tools: [weather] });
  assert(checkCall(answer.choices[0]).city === "Oslo", answer);
}

async function tools_stream() {
  const runner = client.chat.completions.stream({ ...usual, tools: [weather] });
  checkCall((await runner.finalChatCompletion()).choices[0]);
}

async function tools_runner() {
  const cities = [];
  const run = ({ city }) => {
    cities.push(city);
    return '{"temperature": 7}';
  };
  const tool = { ...weather, function: { ...weather.function, function: run, parse: JSON.parse } };
  const runner = client.chat.completions.runTools({ ...usual, tools: [tool] });
  assert((await runner.finalContent()) && cities.join() === "Oslo", cities);
}

async function tools_required() {
  checkCall((await ask({ tools: [weather], tool_choice: "required" })).choices[0]);
}

async function tools_named() {
  const tool_choice = { type: "function", function: { name: "get_weather" } };
  checkCall((await ask({ tools: [weather], tool_choice })).choices[0]);
}

async function structured_output() {
  const response_format = zodResponseFormat(Bird, "bird");
  const answer = await client.chat.completions.parse({ ...usual, temperature: 2, response_format });
  Bird.parse(answer.choices[0].message.parsed);
}

async function completions() {
  const answer = await client.completions.create({ model, prompt: "The owl", max_tokens: 5 });
  assert(answer.choices[0].text, answer);
}

async function responses() {
  const first = await respond({ input: "Say hello." });
  const next = await respond({ input: "Again.", previous_response_id: first.id });
  assert(first.output_text && next.output_text, [first, next]);
  const events = client.responses.stream({ model, input: "Say hello.", temperature: 0 });
  assert((await events.finalResponse()).output_text === first.output_text, first);
  const text = { format: zodTextFormat(Bird, "bird") };
  const parsed = await client.responses.parse({ model, input: "Name a bird.", text });
  Bird.parse(parsed.output_parsed);
}

async function embeddings() {
  const { data } = await client.embeddings.create({ model, input: ["an owl", "a stone"] });
  assert(data.length === 2 && data[0].embedding.length > 1, data);
  assert(data[0].embedding.join() !== data[1].embedding.join(), data);
}

async function bad_request() {
  const error = await checkRaises(() => ask({ top_p: -1 }), (e) => e instanceof OpenAI.BadRequestError);
  assert(error.param === "top_p" && error.requestID, { param: error.param, id: error.requestID });
  await checkRaises(() => ask({ model: "gpt-9" }), (e) => e instanceof OpenAI.NotFoundError);
}

async function context_overflow() {
  const long = { messages: [{ role: "user", content: TOO_LONG }] };
  const error = await checkRaises(() => ask(long), (e) => e.message.includes("maximum context length"));
  assert(error.code === "context_length_exceeded", error.code);
}

async function wrong_key() {
  const stranger = client.withOptions({ apiKey: "wrong" });
  await checkRaises(() => stranger.models.list(), (e) => e instanceof OpenAI.AuthenticationError);
}

async function cancel() {
  for (const start of [
    () => ask({ ...hello, stream: true, max_tokens: ENDLESS_TOKENS, ignore_eos: true }),
    () => respond({ input: "Hi.", stream: true, max_output_tokens: ENDLESS_TOKENS, ignore_eos: true }),
  ]) {
    const events = await start();
    await events[Symbol.asyncIterator]().next();
    await checkFreed(() => events.controller.abort());
  }
}

await report({
  chat: [chat],
  stream: [stream],
  tools_auto: [tools_auto, tools_stream, tools_runner],
  tools_required: [tools_required],
  tools_named: [tools_named],
  structured_output: [structured_output],
  completions: [completions],
  responses: [responses],
  messages: "the package speaks OpenAI's API only",
  embeddings: [embeddings],
  errors: [bad_request, context_overflow, wrong_key],
  cancel: [cancel],
});
