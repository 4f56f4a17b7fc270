// Follows runs while their server is killed and another one starts, and prints what it holds, as JSON.
// node killed.mjs <url of the server> <user> <gate>; then the address of the next server on the standard input.

import { createInterface } from "node:readline";

import { CognizesClient } from "@cognizes/client";
import { openProxy } from "./proxy.mjs";

const [server, user, gate] = process.argv.slice(2);
const proxy = await openProxy(server);
const client = new CognizesClient({ baseUrl: proxy.url, userId: user });
const fast = { firstDelayMs: 20, longestDelayMs: 200 };

/** Start a run, and follow it twice: as a thread and as a run. */
async function follow(agent) {
  const errors = [];
  const thread = client.agents.thread(agent, crypto.randomUUID(), { ...fast, onError: (error) => errors.push(String(error)) });
  thread.start();
  const sent = thread.send(`hold ${gate}`);
  const texts = {};
  let shown = "";
  let halfway;
  const isHalfway = new Promise((resolve) => (halfway = resolve));
  const check = () => {
    const { liveText } = thread.getSnapshot();
    if (liveText.length > 10 && shown.length > 10) halfway();
  };
  const stop = thread.subscribe(check);
  while (thread.getSnapshot().runId === null) await new Promise((resolve) => setTimeout(resolve, 5));
  const followed = (async () => {
    let last;
    for await (const frame of client.runs.follow(thread.getSnapshot().runId, fast)) {
      last = frame;
      if (frame.type === "TEXT_MESSAGE_START") texts[frame.messageId] = "";
      if (frame.type === "TEXT_MESSAGE_CONTENT") texts[frame.messageId] += frame.delta;
      shown = Object.values(texts).filter((text) => !text.startsWith("hold")).join("");
      check();
    }
    return last;
  })();
  await isHalfway;
  stop();
  return { thread, sent, followed, texts, errors };
}

const agents = ["steady", "generic"];
const attached = await Promise.all(agents.map(follow));
console.log("halfway");
const lines = createInterface({ input: process.stdin });
const [next] = await new Promise((resolve) => lines.once("line", (line) => resolve([line])));
lines.close();
proxy.upstream = new URL(next);

const results = {};
for (const [at, { thread, sent, followed, texts, errors }] of attached.entries()) {
  const [result, last] = await Promise.all([sent, followed]);
  const { messages, state, openMessageIds } = thread.getSnapshot();
  thread.stop();
  const end = { result: result.status, error: result.error?.message ?? null, last };
  results[agents[at]] = { agent: agents[at], threadId: thread.threadId, messages, state, texts, errors, open: [...openMessageIds], ...end };
}
await proxy.close();
console.log(JSON.stringify(results));
process.stdin.destroy();
