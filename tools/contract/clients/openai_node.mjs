// The official openai package for Node: chat, streams and tools.

let OpenAI;
try {
  OpenAI = (await import("openai")).default;
} catch {
  console.log(JSON.stringify({ skip: "npm install openai" }));
  process.exit(0);
}

const client = new OpenAI({ baseURL: process.env.LANNER_URL + "/v1", apiKey: "none" });
const model = (await client.models.list()).data[0].id;
const weather = {
  type: "function",
  function: {
    name: "get_weather",
    description: "Get the weather for a city",
    parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
  },
};
const messages = [{ role: "user", content: "What is the weather in Oslo?" }];
const ask = (more) =>
  client.chat.completions.create({ model, messages, temperature: 0, max_tokens: 200, ...more });

function assert(condition, detail) {
  if (!condition) throw new Error(JSON.stringify(detail));
}

function checkCall(choice) {
  assert(choice.finish_reason === "tool_calls", choice);
  const [call] = choice.message.tool_calls;
  assert(call.function.name === "get_weather" && call.id, call);
  return JSON.parse(call.function.arguments);
}

const checks = {
  async chat() {
    const answer = await ask({ messages: [{ role: "user", content: "Say hello." }] });
    assert(answer.choices[0].message.content, answer);
  },
  async tools_auto() {
    const answer = await ask({ tools: [weather] });
    assert(checkCall(answer.choices[0]).city === "Oslo", answer);
  },
  async tools_required() {
    checkCall((await ask({ tools: [weather], tool_choice: "required" })).choices[0]);
  },
  async tools_named() {
    const tool_choice = { type: "function", function: { name: "get_weather" } };
    checkCall((await ask({ tools: [weather], tool_choice })).choices[0]);
  },
  async tools_stream() {
    const stream = client.chat.completions.stream({
      model, messages, temperature: 0, max_tokens: 200, tools: [weather],
    });
    checkCall((await stream.finalChatCompletion()).choices[0]);
  },
};

for (const [check, run] of Object.entries(checks)) {
  try {
    await run();
    console.log(JSON.stringify({ check, ok: true }));
  } catch (error) {
    console.log(JSON.stringify({ check, ok: false, detail: String(error) }));
  }
}
