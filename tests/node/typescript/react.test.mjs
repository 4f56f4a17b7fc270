// `useThread` in a document, against a real server. COGNIZES_URL is the server, COGNIZES_GATES the directory of gates.

import assert from "node:assert/strict";
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { after, test } from "node:test";

import { Window } from "happy-dom";
import { StrictMode, act, createElement as h } from "react";

// The types of the network are those of node: the window of happy-dom has its own, with the rules of browsers.
const window = new Window({ url: "http://localhost/" });
Object.assign(globalThis, { window, document: window.document, navigator: window.navigator, IS_REACT_ACT_ENVIRONMENT: true });
const { createRoot } = await import("react-dom/client");
const { renderToString } = await import("react-dom/server");
const { CognizesClient } = await import("@cognizes/client");
const { useThread } = await import("@cognizes/client/react");

after(() => window.happyDOM.close());

const user = `react-${crypto.randomUUID()}`;
let requests = [];
const client = new CognizesClient({
  baseUrl: process.env.COGNIZES_URL,
  userId: user,
  fetch: async (url, init) => {
    const request = { path: new URL(url).pathname, signal: init.signal };
    requests.push(request);
    return fetch(url, init);
  },
});
let current;
let renders = 0;

function Chat({ agent, threadId }) {
  current = useThread({ client, agent, threadId, firstDelayMs: 5, longestDelayMs: 50 });
  renders += 1;
  return h("main", { "data-status": current.runStatus }, current.messages.map((message) => h("p", { key: message.id, className: message.role }, String(message.content ?? ""))));
}

async function mount(agent, threadId) {
  const place = document.createElement("div");
  document.body.append(place);
  const root = createRoot(place);
  await act(async () => root.render(h(StrictMode, null, h(Chat, { agent, threadId }))));
  return {
    place,
    render: (other) => act(async () => root.render(h(StrictMode, null, h(Chat, { agent, threadId: other })))),
    unmount: () => act(async () => root.unmount()),
  };
}

async function until(condition) {
  const deadline = Date.now() + 30_000;
  while (!condition()) {
    if (Date.now() > deadline) throw new Error(`never: ${condition}; ${JSON.stringify(current)}`);
    await act(() => new Promise((resolve) => setTimeout(resolve, 5)));
  }
}

const shown = (page, role) => [...page.place.querySelectorAll(`p.${role}`)].map((one) => one.textContent);
const words = (text = "") => text.split(" ").filter(Boolean).length;
const answer = Array.from({ length: 40 }, (_, number) => `word${number}`).join(" ");

test("send, live text, a reload in mid-answer, and the end", async () => {
  const [threadId, gate] = [crypto.randomUUID(), crypto.randomUUID()];
  const page = await mount("slow", threadId);
  await until(() => current.connection === "open");
  let done;
  await act(async () => { done = current.send(`hold ${gate}`); });
  assert.deepEqual(shown(page, "user"), [`hold ${gate}`]);
  await until(() => words(current.liveText) >= 20);
  assert.equal(shown(page, "assistant")[0], current.liveText);
  assert.equal(page.place.firstChild.getAttribute("data-status"), "running");
  const before = current.liveText;
  await page.unmount();
  assert.equal((await done).status, "detached");
  const reloaded = await mount("slow", threadId);
  await until(() => words(current.liveText) >= 20);
  assert.equal(current.liveText, before);
  assert.equal(current.runStatus, "running");
  writeFileSync(join(process.env.COGNIZES_GATES, gate), "");
  await until(() => current.runStatus === "completed");
  assert.deepEqual([shown(reloaded, "user"), shown(reloaded, "assistant"), current.liveText], [[`hold ${gate}`], [answer], ""]);
  await reloaded.unmount();
});

test("a question is answered, and a run is cancelled", async () => {
  const page = await mount("demo", crypto.randomUUID());
  await act(async () => { await current.send("delete my diary"); });
  await until(() => current.runStatus === "waiting");
  assert.equal(current.interrupts.length, 1);
  await act(async () => { await current.answer(current.interrupts[0].id, { confirmed: true }); });
  await until(() => current.runStatus === "completed");
  assert.deepEqual(current.state.deleted, ["diary"]);
  assert.match(shown(page, "assistant").at(-1), /diary is deleted/);
  await page.unmount();
  const slow = await mount("slow", crypto.randomUUID());
  let done;
  await act(async () => { done = current.send(`hold ${crypto.randomUUID()}`); });
  await until(() => words(current.liveText) >= 5);
  await act(async () => { assert.equal(await current.cancel(), true); });
  await act(async () => { assert.equal((await done).status, "cancelled"); });
  await until(() => current.runStatus === "cancelled");
  await slow.unmount();
});

test("strict mode, another thread and unmounting leave no connection", async () => {
  const [first, second] = [crypto.randomUUID(), crypto.randomUUID()];
  requests = [];
  const page = await mount("team", first);
  await until(() => current.connection === "open");
  const functions = [current.send, current.answer, current.cancel];
  await act(async () => { await current.send("a poem, please"); });
  assert.deepEqual([current.send, current.answer, current.cancel], functions);
  assert.equal(requests.filter((one) => one.path === "/agui/team").length, 1);
  await page.render(second);
  await until(() => current.connection === "open");
  assert.deepEqual(current.messages, []);
  await page.render(first);
  await until(() => current.messages.length > 1);
  await page.unmount();
  assert.ok(requests.every((one) => one.signal.aborted), "a request is still open");
  const count = renders;
  await new Promise((resolve) => setTimeout(resolve, 50));
  assert.equal(renders, count);
});

test("a page is rendered on a server without a connection", () => {
  requests = [];
  assert.equal(renderToString(h(Chat, { agent: "demo", threadId: "t" })), '<main data-status="idle"></main>');
  assert.deepEqual(requests, []);
});

test("an agent that does not exist is an error in the snapshot", async () => {
  const page = await mount("unknown-agent", crypto.randomUUID());
  await until(() => current.error !== null);
  assert.deepEqual([current.error.name, current.error.status, current.connection], ["NotFoundError", 404, "closed"]);
  await page.unmount();
});
