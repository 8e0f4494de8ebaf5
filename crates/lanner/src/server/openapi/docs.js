
"use strict";

// The address of the server, also behind a proxy that serves it below a path.
const base = location.pathname.replace(/docs\/?$/, "");

// Everything is set as text, so nothing in the document is read as HTML.
function el(tag, attributes, ...children) {
  const node = Object.assign(document.createElement(tag), attributes);
  node.append(...children.filter(child => child != null));
  return node;
}

function typeName(schema) {
  if (!schema || schema === true) return "any";
  if (schema.$ref) {
    const name = schema.$ref.split("/").pop();
    return el("a", { href: "#schema-" + name }, name);
  }
  if ("const" in schema) return JSON.stringify(schema.const);
  if (schema.enum) return schema.enum.map(value => JSON.stringify(value)).join(" | ");
  const list = schema.oneOf || schema.anyOf || schema.allOf;
  if (list) {
    const names = el("span", {});
    list.forEach((one, i) => names.append(i ? " | " : "", typeName(one)));
    return names;
  }
  const types = [].concat(schema.type || "any");
  if (!types.includes("array")) return types.join(" | ");
  return el("span", {}, "array of ", typeName(schema.items), types.includes("null") ? " | null" : "");
}

function limits(schema) {
  // A schema may be `true`: any value.
  if (typeof schema !== "object") return "";
  const names = {
    default: "Default: ", minimum: "at least ", exclusiveMinimum: "above ", maximum: "at most ",
    minLength: "length at least ", maxLength: "length at most ", minItems: "items at least ", maxItems: "items at most ",
  };
  return Object.keys(names).filter(key => key in schema).map(key => names[key] + JSON.stringify(schema[key])).join(", ");
}

function fields(schema) {
  const variants = (schema.oneOf || schema.anyOf || []).filter(one => one.properties).map(fields);
  const rows = Object.entries(schema.properties || {}).map(([name, field]) => {
    const mark = (schema.required || []).includes(name) ? " *" : "";
    const about = [field.description, limits(field)].filter(Boolean).join(" ");
    return el("tr", {}, el("td", {}, el("code", {}, name), mark), el("td", {}, typeName(field)), el("td", {}, about));
  });
  const own = rows.length ? el("table", {}, ...rows) : variants.length ? null : el("p", {}, typeName(schema));
  return el("div", {}, own, ...variants);
}

function media(content) {
  return Object.entries(content || {}).map(([type, one]) =>
    el("div", {}, el("code", {}, type), " ", typeName(one["x-itemSchema"] || one.schema)));
}

function tryIt(method, path, operation) {
  const sent = operation.requestBody && operation.requestBody.content["application/json"];
  const url = el("input", { value: path });
  const body = sent ? el("textarea", { value: JSON.stringify(sent.example, null, 2) }) : null;
  const answer = el("pre", { hidden: true });
  const send = async () => {
    answer.hidden = false;
    answer.textContent = "";
    const headers = sent ? { "Content-Type": "application/json" } : {};
    const key = document.getElementById("key").value;
    if (key) headers.Authorization = "Bearer " + key;
    try {
      const options = { method: method.toUpperCase(), headers, body: body ? body.value : undefined };
      const response = await fetch(base + url.value.replace(/^\//, ""), options);
      answer.textContent = response.status + "\n";
      if (!response.body) return;
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      for (let part; !(part = await reader.read()).done;) answer.append(part.value);
    } catch (error) {
      answer.append(String(error));
    }
  };
  return el("details", {}, el("summary", {}, "Try it"), url, " ", el("button", { onclick: send }, "Send"), body, answer);
}

function operation(path, method, about) {
  const title = el("h3", {}, el("span", { className: "method" }, method.toUpperCase()), path);
  const parameters = (about.parameters || []).map(one => el("tr", {}, el("td", {}, el("code", {}, one.name), " in the " + one.in),
    el("td", {}, typeName(one.schema)), el("td", {}, [one.description, limits(one.schema)].filter(Boolean).join(" "))));
  const answers = Object.entries(about.responses).map(([status, one]) =>
    el("tr", {}, el("td", {}, status), el("td", {}, one.description), el("td", {}, ...media(one.content))));
  return el("section", { id: method + path }, title, el("p", {}, about.summary),
    parameters.length ? el("table", {}, ...parameters) : null,
    about.requestBody ? el("p", {}, "Body: ", ...media(about.requestBody.content)) : null,
    tryIt(method, path, about),
    el("details", {}, el("summary", {}, "Answers"), el("table", {}, ...answers)));
}

async function main() {
  const spec = await (await fetch(base + "openapi.json")).json();
  const nav = document.getElementById("nav"), page = document.getElementById("main");
  page.textContent = "";
  page.append(el("h1", {}, spec.info.title + " " + spec.info.version), el("p", {}, spec.info.description),
    el("p", {}, "API key: ", el("input", { id: "key", type: "password", placeholder: "only if the server has one" })));
  const operations = Object.entries(spec.paths).flatMap(([path, methods]) =>
    Object.entries(methods).map(([method, about]) => ({ path, method, about })));
  for (const tag of spec.tags) {
    nav.append(el("h2", {}, tag.name));
    for (const { path, method, about } of operations.filter(one => one.about.tags.includes(tag.name))) {
      nav.append(el("a", { href: "#" + method + path }, method.toUpperCase() + " " + path));
      page.append(operation(path, method, about));
    }
  }
  nav.append(el("h2", {}, "Types"));
  for (const [name, schema] of Object.entries(spec.components.schemas)) {
    nav.append(el("a", { href: "#schema-" + name }, name));
    page.append(el("section", { id: "schema-" + name }, el("h3", {}, name), el("p", {}, schema.description || ""), fields(schema)));
  }
}

main().catch(error => { document.getElementById("main").textContent = String(error); });
