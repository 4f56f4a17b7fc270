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
    this.branch = "main";
    this.branches = { main: [] };
  }
  say(text, { branch = "main", id = text } = {}) {
    this.branches[branch].push({ id, role: "user", status: "completed", content: [{ type: "text", text }], final_sequence: 1 });
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
    if (url.pathname.endsWith("/metadata")) return Response.json({ id: "c", current_state: this.state, active_branch_name: this.branch });
    if (url.pathname.endsWith("/messages")) {
      const [offset, limit] = ["offset", "limit"].map((name) => Number(url.searchParams.get(name)));
      const all = this.branches[url.searchParams.get("branch")];
      const messages = all.slice(offset, offset + Math.min(limit, this.page));
      return Response.json({ messages, has_more: offset + messages.length < all.length });
    }
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
  const heard = { histories: [], connections: [], text: "", completed: [], states: [], refreshed: [], errors: 0 };
  client.on("history", ({ branch, messages }) => heard.histories.push([branch, messages.map((message) => message.id)]));
  client.on("connection", ({ open, reconnecting }) => heard.connections.push({ open, reconnecting }));
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

test("the next signal repairs dropped ones", async () => {
  const server = new Server();
  const { client, heard, source } = await connected(server);
  server.write("a", "b", "c", "d");
  source.signal(delta(4));
  await until(() => heard.text === "abcd");
  assert.equal(client.stats.gaps, 1);
  assert.equal(server.pulls().length, 1);
  client.close();
});

test("has_more: the next pull starts after the last chunk received, not at the number of the signal", async () => {
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

test("after a reconnection metadata is read again and open messages are pulled", async () => {
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

test("a source that gave up is opened again, with a new ticket", async () => {
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

test("the history of the active branch is loaded at start, page by page", async () => {
  const server = new Server({ page: 2 });
  for (const text of ["one", "two", "three"]) server.say(text);
  const { client, heard } = await connected(server);
  assert.deepEqual(heard.histories, [["main", ["one", "two", "three"]]]);
  assert.equal(client.message("three").text, "three");
  assert.ok(client.message("three").complete);
  client.close();
});

test("history: false loads no messages", async () => {
  const server = new Server();
  server.say("one");
  const { client, heard } = await connected(server, { history: false });
  assert.deepEqual(heard.histories, []);
  assert.ok(!server.requests.some((path) => path.includes("/messages?")));
  client.close();
});

test("a message that is being written at start is pulled to where it is", async () => {
  const server = new Server();
  server.say("one");
  server.branches.main.push({ id: "m", role: "assistant", status: "streaming", content: [], final_sequence: null });
  server.write("so ", "far");
  const { client, heard } = await connected(server);
  await until(() => heard.text === "so far");
  client.close();
});

test("a new whole message is added to the history", async () => {
  const server = new Server();
  server.say("one");
  const { client, heard, source } = await connected(server);
  server.say("two");
  source.signal({ type: "message_created", context_id: "c", message_id: "two" });
  await until(() => heard.histories.length === 2);
  assert.deepEqual(heard.histories[1], ["main", ["one", "two"]]);
  client.close();
});

test("a branch that was read before comes from memory, with what is new", async () => {
  const server = new Server();
  for (let number = 0; number < 50; number++) server.say(`main ${number}`);
  server.branches.other = [];
  server.say("main 0", { branch: "other" });
  const { client, heard, source } = await connected(server);
  const switchTo = async (branch) => {
    server.branch = branch;
    const count = heard.histories.length;
    source.signal({ type: "state_changed", context_id: "c", new_state: "Idle", active_branch_name: branch });
    await until(() => heard.histories.length > count);
  };
  await switchTo("other");
  assert.deepEqual(heard.histories.at(-1), ["other", ["main 0"]]);
  server.say("newer");
  server.requests.length = 0;
  await switchTo("main");
  assert.equal(heard.histories.at(-1)[1].length, 51);
  assert.equal(heard.histories.at(-1)[1].at(-1), "newer");
  assert.match(server.requests.find((path) => path.includes("/messages?")), /offset=49/);
  // Deleted and created again under its name: what is in memory is not of this branch.
  server.branches.other = [];
  server.say("main 1", { branch: "other" });
  await switchTo("other");
  assert.deepEqual(heard.histories.at(-1), ["other", ["main 1"]]);
  client.close();
});

test("a broken connection is reported as reconnecting until it is open again", async () => {
  const server = new Server();
  const { client, heard, source } = await connected(server);
  source.drop();
  source.open();
  assert.deepEqual(heard.connections, [
    { open: true, reconnecting: false },
    { open: false, reconnecting: true },
    { open: true, reconnecting: false },
  ]);
  client.close();
});

test("a start that fails is repeated when the stream opens", async () => {
  const server = new Server();
  server.say("one");
  let failures = 1;
  const fetch = (...given) => (failures-- > 0 ? Promise.reject(new TypeError("network")) : server.fetch(...given));
  const { client, heard } = await connected(server, { fetch });
  await until(() => heard.histories.length === 1);
  assert.deepEqual(heard.histories, [["main", ["one"]]]);
  client.close();
});

test("a heartbeat that is ahead of all signals causes a refresh", async () => {
  const server = new Server();
  const { client, heard, source } = await connected(server);
  source.signal({ type: "state_changed", context_id: "c", new_state: "Idle", sequence_num: 3 });
  source.signal({ type: "heartbeat", context_id: "c", sequence_num: 3 });
  server.say("lost");
  source.signal({ type: "heartbeat", context_id: "c", sequence_num: 4 });
  await until(() => heard.histories.length === 2);
  assert.deepEqual(heard.histories[1], ["main", ["lost"]]);
  assert.deepEqual(heard.refreshed, ["start", "heartbeat"]);
  client.close();
});

test("listeners receive a message that was completed while the connection was lost", async () => {
  const server = new Server();
  const { client, heard, source } = await connected(server);
  source.signal(delta(server.write("half ")));
  await until(() => heard.text === "half ");
  source.drop();
  server.write("of it");
  server.branches.main.push({ id: "m", role: "assistant", status: "completed", content: [{ type: "text", text: "half of it" }], final_sequence: 2 });
  source.open();
  await until(() => heard.completed.length === 1);
  assert.equal(heard.text, "half of it");
  source.signal(completed(2));
  assert.deepEqual(heard.completed, ["half of it"]);
  assert.equal(client.message("m").text, "half of it");
  client.close();
});

test("a client without a history drops what was finished first", async () => {
  const server = new Server();
  const { client, heard, source } = await connected(server, { history: false });
  server.write("all of it");
  for (let number = 0; number < 250; number++) source.signal({ type: "message_completed", context_id: "c", message_id: `m${number}`, final_sequence: 1 });
  await until(() => heard.completed.length === 250);
  assert.equal(client.messages.size, 200);
  assert.ok(client.messages.has("m249"));
  client.close();
});
