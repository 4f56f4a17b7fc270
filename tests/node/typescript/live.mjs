// Follows runs and threads of a real server over connections that are cut, and prints what it holds, as JSON.
// node live.mjs <url of the server> <user> <directory of gates>

import { writeFileSync } from "node:fs";
import { join } from "node:path";

import { CognizesClient, ConflictError } from "@cognizes/client";
import { openProxy } from "./proxy.mjs";

const [server, user, gates] = process.argv.slice(2);
const client = new CognizesClient({ baseUrl: server, userId: user });
const fast = { firstDelayMs: 5, longestDelayMs: 50 };

function newGate() {
  const name = crypto.randomUUID();
  return { text: `hold ${name}`, open: () => writeFileSync(join(gates, name), "") };
}

/** A thread object, through a proxy if one is given. */
function attach(agent, threadId, { proxy, ...options } = {}) {
  const through = proxy ? new CognizesClient({ baseUrl: proxy.url, userId: user }) : client;
  const errors = [];
  const thread = through.agents.thread(agent, threadId, { ...fast, onError: (error) => errors.push(String(error)), ...options });
  thread.errors = errors;
  thread.until = (condition) => new Promise((resolve) => {
    const check = () => { if (condition(thread.getSnapshot())) { stop(); resolve(); } };
    const stop = thread.subscribe(check);
    check();
  });
  return thread;
}

const words = (text) => text.split(" ").filter(Boolean).length;
const held = (thread, more = {}) => {
  const { messages, state, runStatus, connection, interrupts, openMessageIds, liveText } = thread.getSnapshot();
  thread.stop();
  return { agent: thread.agent, threadId: thread.threadId, messages, state, runStatus, connection, interrupts, open: [...openMessageIds], liveText, errors: thread.errors, ...more };
};

const scenarios = {
  /** The iterator of a run, cut three times in mid-answer. */
  async run_cut() {
    const [gate, threadId, proxy] = [newGate(), crypto.randomUUID(), await openProxy(server)];
    const thread = attach("slow", threadId);
    thread.start();
    const done = thread.send(gate.text);
    await thread.until(({ runId }) => runId !== null);
    const { runId } = thread.getSnapshot();
    const through = new CognizesClient({ baseUrl: proxy.url });
    const frames = [];
    let text = "";
    const cutAt = [5, 12, 19];
    for await (const frame of through.runs.follow(runId, fast)) {
      frames.push(frame);
      if (frame.type !== "TEXT_MESSAGE_CONTENT" || frame.messageId !== frames.findLast((one) => one.type === "TEXT_MESSAGE_START").messageId) continue;
      text += frame.delta;
      if (words(text) >= cutAt[0] && frames.some((one) => one.role === "assistant")) {
        cutAt.shift();
        proxy.cut();
        if (!cutAt.length) gate.open();
      }
    }
    await done;
    await proxy.close();
    return held(thread, { runId, frames, cuts: proxy.cuts });
  },

  /** A thread object that is cut, one that comes late, and one that is started again. */
  async thread_cut() {
    const [gate, threadId, proxy] = [newGate(), crypto.randomUUID(), await openProxy(server)];
    const thread = attach("slow", threadId, { proxy });
    thread.start();
    const done = thread.send(gate.text);
    const states = new Set();
    thread.subscribe(() => states.add(thread.getSnapshot().connection));
    await thread.until(({ liveText }) => words(liveText) >= 5);
    proxy.cut();
    await thread.until(({ connection }) => connection === "reconnecting");
    await thread.until(({ connection, liveText }) => connection === "open" && words(liveText) >= 15);
    const late = attach("slow", threadId);
    late.start();
    await late.until(({ liveText }) => words(liveText) >= 15);
    const partial = late.getSnapshot();
    late.stop();
    late.start();
    await late.until(({ liveText, connection }) => connection === "open" && words(liveText) >= 15);
    proxy.cut();
    gate.open();
    const result = await done;
    await late.until(({ runStatus }) => runStatus === "completed");
    await proxy.close();
    return held(thread, { result: result.status, states: [...states], partial: partial.liveText, partialStatus: partial.runStatus, late: held(late) });
  },

  async interrupt() {
    const threadId = crypto.randomUUID();
    const first = attach("demo", threadId);
    first.start();
    const asked = await first.send("delete my diary");
    first.stop();
    const reloaded = attach("demo", threadId);
    reloaded.start();
    await reloaded.until(({ interrupts }) => interrupts.length > 0);
    const waiting = reloaded.getSnapshot();
    const refused = await reloaded.send("something else").catch((error) => error);
    await reloaded.until(({ interrupts }) => interrupts.length > 0);
    const result = await reloaded.answer(waiting.interrupts[0].id, { confirmed: true });
    return held(reloaded, { asked: asked.status, waiting: waiting.runStatus, refused: refused instanceof ConflictError && refused.interrupts.length, result: result.status });
  },

  async client_tool() {
    const threadId = crypto.randomUUID();
    const tools = [{ name: "pick_colour", description: "Pick a colour.", parameters: { type: "object", properties: { of: { type: "string" } } } }];
    const first = attach("painter", threadId, { tools });
    first.start();
    await first.send("paint");
    first.stop();
    const reloaded = attach("painter", threadId, { tools });
    reloaded.start();
    await reloaded.until(({ pendingToolCallIds }) => pendingToolCallIds.length > 0);
    const [call] = reloaded.getSnapshot().pendingToolCallIds;
    const result = await reloaded.respond(call, { result: "blue" });
    return held(reloaded, { result: result.status });
  },

  async cancelled() {
    const gate = newGate();
    const thread = attach("slow", crypto.randomUUID());
    thread.start();
    const done = thread.send(gate.text);
    await thread.until(({ liveText }) => words(liveText) >= 5);
    const cancelled = await thread.cancel();
    const result = await done;
    return held(thread, { cancelled, result: result.status, again: await thread.cancel() });
  },

  async failed() {
    const thread = attach("failing", crypto.randomUUID());
    thread.start();
    const result = await thread.send("go");
    return held(thread, { result: result.status, error: result.error.message, shown: thread.getSnapshot().error.message });
  },

  /** A second client is refused while a run executes, follows it, and may cancel it. */
  async busy() {
    const [gate, threadId] = [newGate(), crypto.randomUUID()];
    const [first, second] = [attach("slow", threadId), attach("slow", threadId)];
    first.start();
    const done = first.send(gate.text);
    await first.until(({ liveText }) => words(liveText) >= 5);
    second.start();
    const refused = await second.send("me too").catch((error) => error);
    await second.until(({ runStatus, liveText }) => runStatus === "running" && words(liveText) >= 5);
    const shown = second.getSnapshot().messages.map((message) => message.role);
    const result = await second.send("instead", { onBusy: "cancel" });
    const first_result = (await done).status;
    first.stop();
    return held(second, { refused: refused instanceof ConflictError, shown, result: result.status, first_result });
  },

  /** A thread object that only watches receives runs of another client. */
  async watched() {
    const threadId = crypto.randomUUID();
    const [watching, other] = [attach("team", threadId), attach("team", threadId)];
    other.start();
    await other.send("a poem, please");
    watching.start();
    await watching.until(({ messages }) => messages.length > 1);
    const count = watching.getSnapshot().messages.length;
    await other.send("one more, please");
    await watching.until(({ messages, runStatus }) => messages.length > count && runStatus !== "running" && messages.at(-1).role === "assistant");
    return held(watching, { other: held(other).messages });
  },

  /** Inputs whose request or whose answer is lost are executed once. */
  async lost_requests() {
    const proxy = await openProxy(server);
    const thread = attach("team", crypto.randomUUID(), { proxy, watch: false });
    const results = [];
    thread.start();
    await thread.until(({ connection }) => connection === "open");
    for (const dropWhen of ["before", "after"]) {
      proxy.cut(); // connections that are kept alive
      Object.assign(proxy, { dropWhen, dropNext: 1 });
      results.push((await thread.send(dropWhen)).status);
    }
    await proxy.close();
    return held(thread, { results, dropped: proxy.dropNext });
  },

  /** Two copies of a context while a message is written; one of them loses its connections. */
  async signal_pull() {
    const { thread_id } = await client.sessions.create({ app_name: "shop", user_id: user });
    const proxy = await openProxy(server);
    const copies = [client.signals(thread_id, fast), new CognizesClient(proxy.url).signals(thread_id, { ...fast, retryMs: 20 })];
    const contents = copies.map(() => new Map());
    copies.forEach((copy, at) => copy.on("content", ({ messageId, delta }) => contents[at].set(messageId, (contents[at].get(messageId) ?? "") + delta)));
    await Promise.all(copies.map((copy) => copy.start()));
    const path = { context_id: thread_id };
    await client.call("POST /contexts/{context_id}/messages", { path, body: { role: "user", content: "count, please 🙂" } });
    const { message_id } = await client.call("POST /contexts/{context_id}/messages/stream", { path, body: { role: "assistant" } });
    for (let number = 0; number < 60; number++) {
      const deltas = [`${number}`, number % 3 ? ", " : " – ü🙂, "];
      await client.call("POST /contexts/{context_id}/messages/{message_id}/chunks", { path: { ...path, message_id }, body: { first_sequence: 2 * number + 1, deltas } });
      if (number % 20 === 10) proxy.cut();
    }
    await client.call("POST /contexts/{context_id}/messages/{message_id}/complete", { path: { ...path, message_id }, body: {} });
    for (const copy of copies) await copy.until(() => copy.messages.length === 2 && copy.messages.every((message) => message.isComplete));
    const shown = copies.map((copy) => copy.messages.map(({ id, role, text }) => ({ id, role, text })));
    const { reconnects } = copies[1].stats;
    for (const copy of copies) copy.close();
    await proxy.close();
    return { threadId: thread_id, shown, contents: contents.map((one) => one.get(message_id)), reconnects };
  },
};

const results = {};
for (const [name, play] of Object.entries(scenarios)) {
  if (process.argv[5] && process.argv[5] !== name) continue;
  const limit = setTimeout(() => { console.error(`${name} does not end`); process.exit(1); }, 60_000);
  results[name] = await play();
  clearTimeout(limit);
}
process.stdout.write(JSON.stringify(results));
// Without `process.exit`: a timer or a socket that was left behind keeps the process running, and the test fails.
