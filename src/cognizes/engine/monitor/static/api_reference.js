// The API page: the operations of openapi.json, with a form to call each of them.

import { authorization, request, savedKey, saveKey, url } from "./api.js";
import { append, h, replace } from "./dom.js";

const METHODS = ["get", "post", "put", "patch", "delete"];
const MOST_SHOWN = 256 * 1024;
const DEEPEST_EXAMPLE = 6;

const byId = (id) => document.getElementById(id);

start();

async function start() {
  setTheme();
  const key = byId("key");
  key.value = savedKey();
  key.addEventListener("change", () => saveKey(key.value.trim()));
  const page = byId("reference");
  try {
    const api = await (await request("openapi.json")).json();
    replace(page, introduction(api), groups(api));
    const words = byId("filter");
    words.addEventListener("input", () => filter(words.value));
    filter(words.value); // typed before the document was here
  } catch (error) {
    replace(page, h("p.is-error", {}, `The OpenAPI document cannot be loaded: ${error.message}`));
  } finally {
    page.setAttribute("aria-busy", "false");
  }
}

function setTheme() {
  const preferred = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  document.documentElement.dataset.theme = localStorage.getItem("cognizes.theme") ?? preferred;
}

function introduction(api) {
  return h("header", {}, h("h1", {}, `${api.info.title} ${api.info.version}`), paragraphs(api.info.description));
}

function groups(api) {
  const byTag = new Map();
  for (const [path, item] of Object.entries(api.paths)) {
    for (const method of METHODS.filter((name) => item[name])) {
      const operation = item[method];
      const tag = operation.tags?.[0] ?? "other";
      if (!byTag.has(tag)) byTag.set(tag, []);
      byTag.get(tag).push(operationCard(api, { path, method, operation, shared: item.parameters ?? [] }));
    }
  }
  return [...byTag].map(([tag, cards]) => h("section.group", { "data-tag": tag }, h("h2", {}, tag), cards));
}

function operationCard(api, entry) {
  const { path, method, operation } = entry;
  const card = h(
    "details.operation",
    { "data-text": `${method} ${path} ${operation.summary ?? ""} ${operation.description ?? ""}`.toLowerCase() },
    h(
      "summary",
      {},
      h("span.method", { "data-method": method }, method.toUpperCase()),
      h("code", {}, path),
      h("span.operation-title", {}, operation.summary ?? ""),
    ),
  );
  // Built when it is opened for the first time: hundreds of forms would slow the page down.
  card.addEventListener("toggle", () => card.append(operationBody(api, entry)), { once: true });
  return card;
}

function operationBody(api, { path, method, operation, shared }) {
  const parameters = [...shared, ...(operation.parameters ?? [])].map((item) => resolve(api, item));
  const inputs = parameters.map((parameter) => ({ parameter, input: parameterInput(api, parameter) }));
  const bodySchema = operation.requestBody && resolve(api, operation.requestBody).content?.["application/json"]?.schema;
  const body = bodySchema && h("textarea", { spellcheck: "false", "aria-label": "Body of the request" });
  if (body) body.value = JSON.stringify(example(api, bodySchema), null, 2);
  const call = { path, method, inputs, body };
  return h(
    "div.operation-body",
    {},
    operation.description && h("div", {}, paragraphs(operation.description)),
    inputs.length > 0 && h("section", {}, h("h3", {}, "Parameters"), parameterTable(api, inputs)),
    body && h("section", {}, h("h3", {}, "Body"), body, schemaView(api, bodySchema, "Schema of the body")),
    sender(call),
    h("section", {}, h("h3", {}, "Answers"), answers(api, operation)),
  );
}

function parameterInput(api, parameter) {
  const schema = resolve(api, parameter.schema ?? {});
  const input = h("input", { type: "text", "aria-label": parameter.name, placeholder: schema.default ?? "" });
  return input;
}

function parameterTable(api, inputs) {
  const rows = inputs.map(({ parameter, input }) =>
    h(
      "tr",
      {},
      h("td", {}, h("code", { class: parameter.required ? "is-required" : "" }, parameter.name)),
      h("td.muted", {}, `${parameter.in}, ${typeName(api, parameter.schema)}`),
      h("td", {}, input, parameter.description && h("div.muted", {}, parameter.description)),
    ),
  );
  return h("table.fields", {}, h("tbody", {}, rows));
}

function answers(api, operation) {
  const rows = Object.entries(operation.responses ?? {}).map(([status, answer]) => {
    const schema = resolve(api, answer).content?.["application/json"]?.schema;
    const isError = Number(status) >= 400;
    return h(
      "tr",
      {},
      h("td", {}, h("code", { class: isError ? "is-error" : "" }, status)),
      h("td", {}, answer.description ?? "", schema && !isError && schemaView(api, schema, typeName(api, schema))),
    );
  });
  return h("table.fields", {}, h("tbody", {}, rows));
}

function schemaView(api, schema, title) {
  const view = h("details", {}, h("summary", {}, h("span.muted", {}, title)));
  const text = () => view.append(h("pre", {}, JSON.stringify(expanded(api, schema), null, 2)));
  view.addEventListener("toggle", text, { once: true });
  return view;
}

function sender(call) {
  const output = h("div", { "aria-live": "polite" });
  const send = h("button.primary", { type: "button" }, "Send");
  const stop = h("button", { type: "button", hidden: true }, "Stop");
  const row = h("div.send-row", {}, send, stop);
  send.addEventListener("click", async () => {
    const controller = new AbortController();
    const onStop = () => controller.abort();
    stop.addEventListener("click", onStop);
    send.disabled = true;
    stop.hidden = false;
    try {
      await perform(call, output, controller.signal);
    } catch (error) {
      if (error.name !== "AbortError") append(output, h("p.is-error", {}, error.message));
    } finally {
      send.disabled = false;
      stop.hidden = true;
      stop.removeEventListener("click", onStop);
    }
  });
  return h("section", {}, row, output);
}

async function perform({ path, method, inputs, body }, output, signal) {
  let place = path;
  const query = {};
  const headers = { ...authorization() };
  for (const { parameter, input } of inputs) {
    const value = input.value.trim();
    if (parameter.in === "path") place = place.replace(`{${parameter.name}}`, encodeURIComponent(value));
    else if (value && parameter.in === "query") query[parameter.name] = value;
    else if (value && parameter.in === "header") headers[parameter.name] = value;
  }
  if (body) headers["Content-Type"] = "application/json";
  const address = url(place, query);
  const shown = h("pre", {}, "");
  const status = h("p.muted", {}, `${method.toUpperCase()} ${address}`);
  replace(output, status, shown);
  const response = await fetch(address, { method: method.toUpperCase(), headers, body: body?.value, signal });
  status.textContent = `${response.status} ${response.statusText} · ${method.toUpperCase()} ${address}`;
  await showText(response, shown);
}

async function showText(response, shown) {
  const decoder = new TextDecoder();
  let text = "";
  for (let reader = response.body?.getReader(); reader; ) {
    const { done, value } = await reader.read();
    if (done) break;
    text += decoder.decode(value, { stream: true });
    if (text.length > MOST_SHOWN) {
      await reader.cancel();
      text = `${text.slice(0, MOST_SHOWN)}\n… the rest is not shown`;
      break;
    }
    shown.textContent = text;
  }
  shown.textContent = pretty(text);
}

function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

function filter(text) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  for (const group of document.querySelectorAll(".group")) {
    let found = 0;
    for (const card of group.querySelectorAll(".operation")) {
      card.hidden = !words.every((word) => card.dataset.text.includes(word));
      found += card.hidden ? 0 : 1;
    }
    group.hidden = found === 0;
  }
}

/** Follows a `$ref` within the document. */
function resolve(api, item) {
  if (!item?.$ref) return item ?? {};
  return item.$ref
    .slice(2)
    .split("/")
    .reduce((found, part) => found?.[part.replaceAll("~1", "/").replaceAll("~0", "~")], api);
}

/** A schema with its references replaced, as deep as an example goes. */
function expanded(api, item, depth = 0) {
  if (Array.isArray(item)) return item.map((value) => expanded(api, value, depth + 1));
  if (item === null || typeof item !== "object") return item;
  if (item.$ref) return depth > DEEPEST_EXAMPLE ? item.$ref.split("/").at(-1) : expanded(api, resolve(api, item), depth + 1);
  return Object.fromEntries(Object.entries(item).map(([name, value]) => [name, expanded(api, value, depth + 1)]));
}

function typeName(api, schema) {
  if (!schema) return "any";
  if (schema.$ref) return schema.$ref.split("/").at(-1);
  const options = schema.anyOf ?? schema.oneOf;
  if (options) return options.map((option) => typeName(api, option)).join(" or ");
  if (schema.type === "array") return `array of ${typeName(api, schema.items)}`;
  return schema.enum ? schema.enum.map((value) => JSON.stringify(value)).join(" or ") : (schema.type ?? "any");
}

/** A value that fits a schema: required properties and those with a default. */
function example(api, given, depth = 0) {
  const schema = resolve(api, given);
  if (schema.examples?.length) return schema.examples[0];
  if (schema.example !== undefined) return schema.example;
  if (schema.default !== undefined) return schema.default;
  if (schema.const !== undefined) return schema.const;
  if (schema.enum) return schema.enum[0];
  const options = schema.anyOf ?? schema.oneOf ?? schema.allOf;
  if (options) return example(api, options[0], depth);
  if (schema.type === "object" || schema.properties) {
    const required = new Set(schema.required ?? []);
    const chosen = Object.entries(schema.properties ?? {}).filter(([name]) => required.has(name));
    if (depth >= DEEPEST_EXAMPLE) return {};
    return Object.fromEntries(chosen.map(([name, property]) => [name, example(api, property, depth + 1)]));
  }
  return { string: "", integer: 0, number: 0, boolean: false, array: [] }[schema.type] ?? null;
}

/** Text with blank lines between paragraphs and code in backquotes, as elements. */
function paragraphs(text) {
  const blocks = (text ?? "").split(/\n\s*\n/).filter((block) => block.trim());
  return blocks.map((block) =>
    h("p", {}, block.split(/`([^`]+)`/).map((part, index) => (index % 2 ? h("code", {}, part) : part))),
  );
}
