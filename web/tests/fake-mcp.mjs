// An MCP server over stdio with one tool.

import { createInterface } from "node:readline";

const tool = {
  name: "forecast",
  description: "The weather of a city.",
  inputSchema: {
    type: "object",
    properties: { city: { enum: ["Oslo"] } },
    required: ["city"],
    additionalProperties: false,
  },
};

function result({ method, params }) {
  switch (method) {
    case "initialize":
      return {
        protocolVersion: "2025-06-18",
        capabilities: { tools: {} },
        serverInfo: { name: "fake", version: "1" },
      };
    case "tools/list":
      return { tools: [tool] };
    case "tools/call":
      return { content: [{ type: "text", text: `7 degrees in ${params.arguments.city}` }] };
    default:
      return {};
  }
}

createInterface({ input: process.stdin }).on("line", line => {
  const message = JSON.parse(line);
  if (message.id === undefined) return;
  console.log(JSON.stringify({ jsonrpc: "2.0", id: message.id, result: result(message) }));
});
