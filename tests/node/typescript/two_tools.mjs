// Two calls of a tool of the client are answered one after the other: the agent continues once, with both results.
// node two_tools.mjs <url of the server> <user>; prints what it saw, as JSON.

import { CognizesClient } from "@cognizes/client";

const [server, user] = process.argv.slice(2);
const client = new CognizesClient({ baseUrl: server, userId: user });
const tools = [{ name: "pick_colour", description: "Pick a colour.", parameters: { type: "object", properties: { of: { type: "string" } } } }];
const attach = (threadId) => client.agents.thread("painting_graph", threadId, { tools, firstDelayMs: 5, longestDelayMs: 50 });
const until = (thread, condition) => new Promise((resolve) => {
  const check = () => { if (condition(thread.getSnapshot())) { stop(); resolve(); } };
  const stop = thread.subscribe(check);
  check();
});

const threadId = crypto.randomUUID();
const thread = attach(threadId);
thread.start();
await thread.send("paint twice");
const [first, second] = thread.getSnapshot().pendingToolCallIds;
const waiting = await thread.respond(first, "blue");
const left = thread.getSnapshot().pendingToolCallIds;
const done = await thread.respond(second, "red");
const { messages, pendingToolCallIds } = thread.getSnapshot();
thread.stop();

// Another message before all results: the agent continues without them.
const other = attach(crypto.randomUUID());
other.start();
await other.send("paint twice");
await other.respond(other.getSnapshot().pendingToolCallIds[0], "green");
const skipped = await other.send("never mind");
await until(other, ({ runStatus }) => runStatus === "completed");
const rest = other.getSnapshot().pendingToolCallIds;
other.stop();

console.log(JSON.stringify({
  waiting: waiting.status, left: left.length === 1 && left[0] === second, done: done.status, error: done.error?.message ?? null,
  results: messages.filter((message) => message.role === "tool").map((message) => message.content),
  last: messages.at(-1).content, pending: pendingToolCallIds, threadId, skipped: skipped.status, rest,
}));
