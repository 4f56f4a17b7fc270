// The Signal-Pull client against a server that loses signals, fails pulls and goes away. Run by `node --test`.

import assert from "node:assert/strict";
import { test } from "node:test";

const { SignalPullClient } = await import(process.env.SIGNAL_PULL ?? "../../src/cognizes/engine/monitor/static/signal_pull.js");

class Source extends EventTarget {
  static opened = [];
  constructor(url) {
    super();
    this.url = url;
    this.readyState = 0;
    Source.opened.push(this);
  }
  open() {
    this.readyState = 1;
    this.dispatchEvent(new Event("open"));
  }
  signal(data) {
    this.dispatchEvent(new MessageEvent("signal", { data: typeof data === "string" ? data : JSON.stringify(data) }));
  }
  drop({ forGood = false } = {}) {
    this.readyState = forGood ? 2 : 0;
    this.dispatchEvent(new Event("error"));
  }
  close() {
    this.readyState = 2;
  }
}

/** A server with one message; `page` is the most chunks it answers with at once. */
class Server {
  constructor({ page = 1000 } = {}) {
    this.chunks = [];
    this.page = page;
    this.requests = [];
    this.failing = 0;
    this.state = "Idle";
    this.gate = null;
  }
  write(...deltas) {
    for (const delta of deltas) this.chunks.push({ sequence: this.chunks.length + 1, delta });
    return this.chunks.length;
  }
  get text() {
    return this.chunks.map((chunk) => chunk.delta).join("");
  }
  fetch = async (address) => {
    const url = new URL(address, "http://engine");
    this.requests.push(url.pathname + url.search);
    if (url.pathname.endsWith("/metadata")) return Response.json({ id: "c", current_state: this.state });
    if (this.gate) await this.gate;
    if (this.failing > 0) {
      this.failing -= 1;
      if (this.failing % 2) throw new TypeError("network");
      return new Response("no", { status: 503 });
    }
    const after = Number(url.searchParams.get("from_sequence"));
    const chunks = this.chunks.slice(after, after + this.page);
    return Response.json({ chunks, current_sequence: this.chunks.length, has_more: after + chunks.length < this.chunks.length });
  };
  pulls() {
    return this.requests.filter((path) => path.includes("streaming-chunks"));
  }
}

async function connected(server, options = {}) {
  Source.opened.length = 0;
  const client = new SignalPullClient("http://engine", "c", { fetch: server.fetch, eventSource: (url) => new Source(url), retryMs: 5, ...options });
  const heard = { text: "", completed: [], states: [], refreshed: [], errors: 0 };
  client.on("content", ({ delta }) => (heard.text += delta));
  client.on("completed", ({ text }) => heard.completed.push(text));
  client.on("state", ({ state }) => heard.states.push(state));
  client.on("refresh", ({ reason }) => heard.refreshed.push(reason));
  client.on("error", () => (heard.errors += 1));
  await client.start();
  Source.opened[0].open();
  return { client, heard, source: Source.opened[0] };
}

async function until(condition) {
  const deadline = Date.now() + 30_000;
  while (!condition()) {
    if (Date.now() > deadline) throw new Error(`never: ${condition}`);
    await new Promise((resolve) => setTimeout(resolve, 1));
  }
}

const delta = (sequence) => ({ type: "content_delta", context_id: "c", message_id: "m", current_sequence: sequence });
const completed = (sequence) => ({ type: "message_completed", context_id: "c", message_id: "m", final_sequence: sequence });

test("a signal is pulled, and asked from what is there", async () => {
  const server = new Server();
  const { client, heard, source } = await connected(server);
  source.signal(delta(server.write("He", "llo")));
  await until(() => heard.text === "Hello");
  source.signal(delta(server.write(" world")));
  await until(() => heard.text === "Hello world");
  assert.match(server.pulls()[0], /\/contexts\/c\/messages\/m\/streaming-chunks\?from_sequence=0/);
  assert.match(server.pulls()[1], /from_sequence=2/);
  assert.equal(client.message("m").text, server.text);
  client.close();
});

test("dropped signals are healed by the next one", async () => {
  const server = new Server();
  const { client, heard, source } = await connected(server);
  server.write("a", "b", "c", "d");
  source.signal(delta(4));
  await until(() => heard.text === "abcd");
  assert.equal(client.stats.gaps, 1);
  assert.equal(server.pulls().length, 1);
  client.close();
});

test("has_more: it goes on from the last chunk received, not from the signal's number", async () => {
  const server = new Server({ page: 2 });
  const { client, heard, source } = await connected(server);
  server.write(..."abcdefg");
  source.signal(delta(7));
  await until(() => heard.text === "abcdefg");
  assert.deepEqual(server.pulls().map((path) => /from_sequence=(\d+)/.exec(path)[1]), ["0", "2", "4", "6"]);
  client.close();
});

test("a signal that is ahead of the rows does not make it jump", async () => {
  const server = new Server();
  const { client, heard, source } = await connected(server);
  server.write("a", "b");
  source.signal(delta(5));
  await until(() => heard.text === "ab");
  assert.equal(client.message("m").sequence, 2);
  server.write("c", "d", "e");
  source.signal(delta(5));
  await until(() => heard.text === "abcde");
  client.close();
});

test("a failed pull changes nothing, and the next signal repeats it", async () => {
  const server = new Server();
  const { client, heard, source } = await connected(server, { retryMs: 60_000 });
  server.failing = 1;
  source.signal(delta(server.write("a", "b")));
  await until(() => heard.errors === 1);
  assert.equal(client.message("m").sequence, 0);
  assert.equal(heard.text, "");
  source.signal(delta(server.write("c")));
  await until(() => heard.text === "abc");
  client.close();
});

test("the last pull of a message that fails is tried again by itself", async () => {
  const server = new Server();
  const { client, heard, source } = await connected(server);
  server.failing = 3;
  source.signal(completed(server.write("all", " of it")));
  await until(() => heard.completed.length === 1);
  assert.deepEqual(heard.completed, ["all of it"]);
  assert.equal(heard.errors, 3);
  client.close();
});

test("completed once, and only when everything is there", async () => {
  const server = new Server({ page: 1 });
  const { client, heard, source } = await connected(server);
  server.write("a", "b", "c");
  source.signal(delta(1));
  source.signal(completed(3));
  await until(() => heard.completed.length > 0);
  assert.deepEqual(heard.completed, ["abc"]);
  source.signal(completed(3));
  source.signal(delta(server.chunks.length));
  assert.deepEqual(heard.completed, ["abc"]);
  client.close();
});

test("a thousand signals during one pull become one more pull", async () => {
  const server = new Server();
  const { client, heard, source } = await connected(server);
  let open;
  server.gate = new Promise((resolve) => (open = resolve));
  server.write("first");
  source.signal(delta(1));
  for (let number = 2; number <= 1000; number++) source.signal(delta(server.write(".")));
  server.gate = null;
  open();
  await until(() => heard.text === server.text);
  assert.ok(server.pulls().length <= 2, `${server.pulls().length} pulls`);
  client.close();
});

test("chunks that repeat or leave a hole are never applied", async () => {
  const server = new Server();
  const { client, heard } = await connected(server);
  client._take("m", [{ sequence: 1, delta: "a" }, { sequence: 1, delta: "a" }, { sequence: 3, delta: "c" }]);
  assert.equal(heard.text, "a");
  assert.equal(client.message("m").sequence, 1);
  client.close();
});

test("after a reconnection metadata is read anew and open messages are pulled", async () => {
  const server = new Server();
  const { client, heard, source } = await connected(server);
  source.signal(delta(server.write("before ")));
  await until(() => heard.text === "before ");
  source.drop();
  server.write("while away");
  server.state = "StreamingLLMResponse";
  source.open();
  await until(() => heard.text === "before while away" && heard.states.includes("StreamingLLMResponse"));
  assert.deepEqual(heard.refreshed, ["start", "reconnect"]);
  client.close();
});

test("a source that gave up is opened anew, with a new ticket", async () => {
  const server = new Server();
  let ticket = 0;
  const { client, source } = await connected(server, { prepareUrl: async (url) => `${url}?ticket=${++ticket}` });
  source.drop({ forGood: true });
  await until(() => Source.opened.length === 2);
  assert.match(Source.opened[1].url, /ticket=2$/);
  client.close();
});

test("signals that cannot be read are left out, and a closed client is silent", async () => {
  const server = new Server();
  const { client, heard, source } = await connected(server);
  source.signal("{nonsense");
  source.signal({ type: "of tomorrow", context_id: "c" });
  source.signal({ type: "state_changed", context_id: "c", new_state: "Failed" });
  assert.deepEqual(heard.states, ["Idle", "Failed"]);
  client.close();
  source.signal(delta(server.write("late")));
  assert.equal(heard.text, "");
  assert.equal(server.pulls().length, 0);
});
