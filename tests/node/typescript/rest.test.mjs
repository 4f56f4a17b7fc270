// The client against a real server: sessions, timelines, runs, memory, files, usage, and errors.
// COGNIZES_URL is the server without keys; COGNIZES_KEYED_URL requires keys, COGNIZES_KEYS are those of two users.

import assert from "node:assert/strict";
import { test } from "node:test";

import { ApiError, AuthenticationError, CognizesClient, ConflictError, DELETE, InvalidInputError, NotFoundError, PermissionDeniedError } from "@cognizes/client";

const client = new CognizesClient(process.env.COGNIZES_URL);
const user = `ts-${crypto.randomUUID()}`;
const newSession = (more = {}) => client.sessions.create({ app_name: "shop", user_id: user, ...more });

async function collected(items) {
  const all = [];
  for await (const item of items) all.push(item);
  return all;
}

test("sessions: create, get, change, list, delete", async () => {
  const owner = { app_name: "shop", user_id: `ts-${crypto.randomUUID()}` };
  const created = await Promise.all([1, 2, 3].map((number) => client.sessions.create({ ...owner, state: { number, "user:lang": "en" } })));
  assert.deepEqual((await client.sessions.get(created[0].thread_id)).state, { number: 1, "user:lang": "en" });
  assert.equal((await client.sessions.change(created[0].thread_id, { title: "Ünïcode 🙂" })).title, "Ünïcode 🙂");
  const page = await client.sessions.list({ ...owner, limit: 2 });
  assert.equal(page.sessions.length, 2);
  assert.ok(page.next_cursor);
  const all = await collected(client.sessions.iterate({ ...owner, limit: 1 }));
  assert.deepEqual(new Set(all.map((one) => one.thread_id)), new Set(created.map((one) => one.thread_id)));
  await client.sessions.delete(created[0].thread_id);
  await assert.rejects(client.sessions.get(created[0].thread_id), (error) => error instanceof NotFoundError && error.requestId && error.detail.includes(created[0].thread_id));
});

test("events and state: append once, page, conflict, time travel, fork", async () => {
  const { thread_id, version } = await newSession();
  const event = { id: crypto.randomUUID(), author: "user", event_type: "user_message", content: { text: "hello" } };
  const first = await client.sessions.append(thread_id, event);
  assert.deepEqual(await client.sessions.append(thread_id, event), first);
  await assert.rejects(client.sessions.append(thread_id, { ...event, content: { text: "another" } }), ConflictError);
  for (let number = 0; number < 5; number++) await client.sessions.append(thread_id, { author: "agent", event_type: "assistant_message", content: { text: `answer ${number}` } });
  const events = await collected(client.sessions.iterateEvents(thread_id, { limit: 2 }));
  assert.deepEqual(events.map((one) => one.sequence_num), [1, 2, 3, 4, 5, 6]);
  const messages = await collected(client.sessions.iterateMessages(thread_id, { limit: 2 }));
  assert.deepEqual(messages.map((one) => one.content), ["hello", ...[0, 1, 2, 3, 4].map((number) => `answer ${number}`)]);
  const changed = await client.sessions.changeState(thread_id, { a: 1, b: 2 }, { expected_version: version });
  await client.sessions.changeState(thread_id, { b: DELETE });
  await assert.rejects(client.sessions.changeState(thread_id, { a: 3 }, { expected_version: version }), (error) => error instanceof ConflictError && error.expected === version && error.actual === version + 2);
  assert.deepEqual((await client.sessions.state(thread_id)).state, { a: 1 });
  assert.deepEqual((await client.sessions.state(thread_id, { sequence: changed.sequence_num })).state, { a: 1, b: 2 });
  const fork = await client.sessions.fork(thread_id, { at_sequence: 1 });
  assert.deepEqual((await collected(client.sessions.iterateMessages(fork.thread_id))).map((one) => one.content), ["hello"]);
});

test("timelines are read in pages, newest first", async () => {
  const { thread_id } = await newSession();
  for (let number = 1; number <= 7; number++) await client.sessions.append(thread_id, { author: "user", event_type: "user_message", content: { text: String(number) } });
  const pages = await collected(client.timelines.pages(thread_id, { limit: 3 }));
  assert.deepEqual(pages.map((page) => page.timeline.map((item) => item.content)), [["5", "6", "7"], ["2", "3", "4"], ["1"]]);
  assert.deepEqual((await client.timelines.read(thread_id, { after: 6 })).timeline.map((item) => item.content), ["7"]);
});

test("runs: create, suspend, signal, cancel, finish, follow", async () => {
  const { thread_id } = await newSession();
  const run = await client.runs.create(thread_id);
  assert.equal(run.status, "running");
  const waiting = await client.runs.suspend(run.id, { kind: "human", correlation_key: "approve", reason: "more than 100 EUR" });
  assert.equal(waiting.status, "waiting");
  assert.ok((await client.runs.list({ app_name: "shop", user_id: user, status: "waiting" })).runs.some((one) => one.id === run.id));
  await assert.rejects(client.runs.signal(run.id, "wrong", {}), ConflictError);
  assert.equal((await client.runs.signal(run.id, "approve", { ok: true })).outcome, "resumed");
  assert.equal((await client.runs.signal(run.id, "approve", { ok: true })).outcome, "duplicate");
  assert.equal((await client.runs.cancel(run.id, { threadId: thread_id })).status, "cancelled");
  await assert.rejects(client.runs.cancel(run.id), ConflictError);
  const frames = await collected(client.runs.follow(run.id));
  assert.deepEqual([frames[0].type, frames.at(-1).type, frames.at(-1).status], ["RUN_STARTED", "RUN_FINISHED", "cancelled"]);
  // From each cursor the rest comes, and after the end nothing, without waiting for ever.
  for (const [at, one] of frames.entries()) assert.deepEqual((await collected(client.runs.follow(run.id, { after: one.cursor }))).map((rest) => rest.cursor), frames.slice(at + 1).map((rest) => rest.cursor));
  const second = await client.runs.create(thread_id);
  assert.equal((await client.runs.finish(thread_id, second.id, { attempt: second.attempt })).status, "completed");
  assert.equal((await client.runs.get(second.id)).status, "completed");
  assert.equal((await client.runs.listOfThread(thread_id)).length, 2);
});

test("runs: answer, wait for a question, wait for the end", async () => {
  const { thread_id } = await newSession();
  const run = await client.runs.create(thread_id);
  await assert.rejects(client.runs.answer(run.id, true), /waits for nothing/);
  const steps = [];
  const answering = (async () => {
    for (const key of ["first", "second"]) {
      await client.runs.suspend(run.id, { kind: "human", correlation_key: key });
      const asked = await client.runs.wait(run.id, { untilWaiting: true, signal: AbortSignal.timeout(60_000) });
      steps.push(asked.wait.correlation_key);
      await client.runs.answer(run.id, { ok: key });
      await client.call("POST /api/sessions/{thread_id}/runs/{run_id}/start", { path: { thread_id, run_id: run.id } });
    }
    await client.runs.finish(thread_id, run.id);
  })();
  assert.equal((await client.runs.wait(run.id, { signal: AbortSignal.timeout(60_000) })).status, "completed");
  await answering;
  assert.deepEqual(steps, ["first", "second"]);
});

test("runs: all pages", async () => {
  const owner = { app_name: "shop", user_id: `ts-${crypto.randomUUID()}` };
  const { thread_id } = await client.sessions.create(owner);
  const created = [];
  for (let number = 0; number < 3; number++) created.unshift((await client.runs.create(thread_id)).id);
  assert.deepEqual((await collected(client.runs.iterate({ ...owner, limit: 1 }))).map((run) => run.id), created);
});

test("a run whose answer is lost is created once", async () => {
  const { thread_id } = await newSession();
  const lost = { count: 0 };
  const losing = new CognizesClient({
    baseUrl: process.env.COGNIZES_URL,
    fetch: async (url, init) => {
      const response = await fetch(url, init);
      if (init.method === "POST" && lost.count++ === 0) throw new TypeError("the connection is lost");
      return response;
    },
  });
  const run = await losing.runs.create(thread_id, { handler: "mail" });
  assert.equal(lost.count, 2);
  assert.deepEqual((await client.runs.listOfThread(thread_id)).map((one) => one.id), [run.id]);
  await assert.rejects(client.runs.create(thread_id, { run_id: run.id }), ConflictError);
});

test("a cursor behind the end of the thread: the run is read again", async () => {
  const { thread_id } = await newSession();
  const run = await client.runs.create(thread_id);
  await client.runs.fail(thread_id, run.id, "out of paper");
  const frames = await collected(client.runs.follow(run.id, { after: 1000 }));
  assert.equal(frames[0].type, "RESET");
  assert.deepEqual([frames.at(-1).type, frames.at(-1).status, frames.at(-1).error], ["RUN_FINISHED", "failed", "out of paper"]);
});

test("memory: add, recall, context, facts, forget", async () => {
  const owner = { app_name: "shop", user_id: user };
  const notes = [{ source_id: "n1", text: "Ada drinks green tea" }, { source_id: "n2", text: "The car is broken" }];
  assert.equal((await client.memory.add(owner, notes)).stored, 2);
  assert.equal((await client.memory.add(owner, notes)).stored, 0);
  const hits = await client.memory.recall({ ...owner, query: "what tea does Ada drink?", k: 1 });
  assert.equal(hits[0].text ?? hits[0].memory?.text, "Ada drinks green tea");
  assert.match((await client.memory.context({ ...owner, query: "tea", budget_tokens: 200 })).text, /green tea/);
  await client.memory.setFact({ ...owner, key: "city", value: { name: "Zürich" } });
  assert.deepEqual((await client.memory.fact({ ...owner, key: "city" }))?.value, { name: "Zürich" });
  assert.equal(await client.memory.fact({ ...owner, key: "none" }), null);
  const memories = await collected(client.memory.iterate({ ...owner, kind: ["note"], limit: 1 }));
  assert.equal(memories.length, 2);
  await client.memory.forget(String(memories[0].id ?? memories[0].memory_id), owner);
  assert.equal((await collected(client.memory.iterate({ ...owner, kind: ["note"] }))).length, 1);
});

test("attachments: upload, list, download, a range", async () => {
  const { thread_id } = await newSession();
  const bytes = crypto.getRandomValues(new Uint8Array(50_000));
  const stored = await client.attachments.upload(thread_id, new Blob([bytes], { type: "image/png" }), { name: "pixels ü.png" });
  assert.deepEqual([stored.name, stored.mime_type, stored.size], ["pixels ü.png", "image/png", 50_000]);
  assert.deepEqual((await client.attachments.list(thread_id)).attachments.map((one) => one.id), [stored.id]);
  const { data, type } = await client.attachments.download(thread_id, stored.id);
  assert.deepEqual([new Uint8Array(data), type], [bytes, "image/png"]);
  const part = await client.attachments.download(thread_id, stored.id, { start: 10, end: 19 });
  assert.deepEqual(new Uint8Array(part.data), bytes.slice(10, 20));
  await assert.rejects(client.attachments.download(thread_id, crypto.randomUUID()), NotFoundError);
});

test("usage is counted once", async () => {
  const { thread_id } = await newSession();
  const usage = { id: crypto.randomUUID(), model: "m", input_tokens: 10, output_tokens: 5 };
  assert.deepEqual([await client.usage.record(thread_id, usage), await client.usage.record(thread_id, usage)], [{ is_new: true }, { is_new: false }]);
  assert.equal((await client.usage.ofSession(thread_id)).total_tokens, 15);
});

test("any operation by its method and path, and errors with their places", async () => {
  assert.equal((await client.call("GET /health")).status, "ok");
  await assert.rejects(client.call("GET /api/sessions", { query: { app_name: "shop", limit: -1 } }), (error) => error instanceof InvalidInputError && error.status === 422 && error.errors.some((one) => one.at.includes("limit")));
  await assert.rejects(client.transport.json({ method: "GET", path: "/nowhere" }), (error) => error instanceof ApiError && error.status === 404);
});

test("keys: none, a wrong one, and the thread of another user", async () => {
  const url = process.env.COGNIZES_KEYED_URL;
  const [ada, bob] = process.env.COGNIZES_KEYS.split(",").map((apiKey) => new CognizesClient({ baseUrl: url, apiKey }));
  await assert.rejects(new CognizesClient(url).sessions.list({ app_name: "shop" }), AuthenticationError);
  await assert.rejects(new CognizesClient({ baseUrl: url, apiKey: "cgz_wrong_wrong" }).sessions.list({ app_name: "shop" }), AuthenticationError);
  const { thread_id } = await ada.sessions.create({ app_name: "shop", user_id: "ada" });
  await ada.sessions.append(thread_id, { author: "user", event_type: "user_message", content: { text: "secret" } });
  const isRefused = (error) => error instanceof NotFoundError || error instanceof PermissionDeniedError;
  await assert.rejects(bob.sessions.get(thread_id), isRefused);
  await assert.rejects(bob.sessions.append(thread_id, { author: "user", event_type: "user_message", content: { text: "x" } }), isRefused);
  await assert.rejects(bob.timelines.read(thread_id), isRefused);
  await assert.rejects(bob.sessions.create({ app_name: "shop", user_id: "ada" }), PermissionDeniedError);
  const copy = bob.signals(thread_id);
  const shown = [];
  copy.on("history", (one) => shown.push(one));
  await assert.rejects(copy.start(), isRefused);
  assert.deepEqual([shown, copy.messages], [[], []]);
  const own = ada.signals(thread_id);
  await own.start();
  assert.deepEqual(own.messages.map((one) => one.text), ["secret"]);
  own.close();
  const backend = new CognizesClient({ baseUrl: url, apiKey: process.env.COGNIZES_BACKEND_KEY });
  const run = await backend.runs.create(thread_id);
  await assert.rejects(collected(bob.runs.follow(run.id)), isRefused);
});

test("a thread of an agent belongs to its user", async () => {
  const url = process.env.COGNIZES_KEYED_URL;
  const [ada, bob] = process.env.COGNIZES_KEYS.split(",").map((apiKey) => new CognizesClient({ baseUrl: url, apiKey }));
  const threadId = crypto.randomUUID();
  const own = ada.agents.thread("generic", threadId);
  own.start();
  assert.equal((await own.send("a secret")).status, "completed");
  own.stop();
  const other = bob.agents.thread("generic", threadId);
  other.start();
  await new Promise((resolve) => other.subscribe(() => other.getSnapshot().connection === "open" && resolve()));
  assert.deepEqual([other.getSnapshot().messages, other.getSnapshot().state, other.getSnapshot().runId], [[], {}, null]);
  assert.equal(await other.cancel(), false);
  other.stop();
  const posing = new CognizesClient({ baseUrl: url, apiKey: process.env.COGNIZES_KEYS.split(",")[1], userId: "ada" }).agents.thread("generic", threadId);
  posing.start();
  await assert.rejects(posing.send("show it"), PermissionDeniedError);
  assert.deepEqual(posing.getSnapshot().messages, []);
  posing.stop();
});

test("all headers pass the preflight of a page on another host", async () => {
  const simple = new Set(["accept"]);
  const refused = [];
  const asPage = async (address, init) => {
    const names = [...new Headers(init.headers).keys()].filter((name) => !simple.has(name)).sort().join(",");
    const headers = { Origin: "https://app.example", "Access-Control-Request-Method": init.method, "Access-Control-Request-Headers": names };
    const allowed = await fetch(address, { method: "OPTIONS", headers });
    if (allowed.status !== 200) refused.push([init.method, address, names, await allowed.text()]);
    return fetch(address, { ...init, headers: { ...Object.fromEntries(new Headers(init.headers)), Origin: "https://app.example" } });
  };
  const page = new CognizesClient({ baseUrl: process.env.COGNIZES_KEYED_URL, apiKey: process.env.COGNIZES_BACKEND_KEY, userId: "ada", fetch: asPage });
  const { thread_id } = await page.sessions.create({ app_name: "shop", user_id: "ada" });
  await page.sessions.append(thread_id, { author: "user", event_type: "user_message", content: { text: "hi" } });
  await page.sessions.changeState(thread_id, { a: 1 });
  await page.sessions.get(thread_id);
  await page.attachments.upload(thread_id, "text", { type: "text/plain" });
  const run = await page.runs.create(thread_id);
  await page.runs.finish(thread_id, run.id);
  await collected(page.runs.follow(run.id, { after: 1 }));
  const copy = page.signals(thread_id);
  await copy.start();
  copy.close();
  const thread = page.agents.thread("generic", crypto.randomUUID());
  thread.start();
  await thread.send("hello");
  thread.stop();
  await page.sessions.delete(thread_id);
  assert.deepEqual(refused, []);
});
