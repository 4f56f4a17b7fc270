// Attaches the real AG-UI client to a run of any hosted agent in mid-run, and prints what each client holds, as JSON.
// node attaching.mjs <agui-0|agui-1> <url of the server> <user> <directory of gates> <agent>
// The agent answers `hold <gate>` in words, and stops in the middle of them until the gate is open.

import { writeFileSync } from "node:fs";
import { join } from "node:path";

const [client, server, user, gates, name] = process.argv.slice(2);
const { HttpAgent, runHttpRequest, transformHttpEventStream } = await import(client);
const complaints = [];
for (const method of ["warn", "error"]) {
  console[method] = (...words) => complaints.push(words.map(String).join(" "));
}

class Agent extends HttpAgent {
  connect(input) {
    this.abortController = new AbortController(); // the one of the run may be spent
    return transformHttpEventStream(runHttpRequest(() => fetch(`${this.url}/connect`, this.requestInit(input))));
  }
}

function open(threadId) {
  return new Agent({ url: `${server}/agui/${name}`, agentId: name, threadId, headers: { "X-User-ID": user } });
}

const threadId = crypto.randomUUID();
const gate = crypto.randomUUID();
const staying = open(threadId);
const leaving = open(threadId);
const cold = open(threadId);
let begun;
const hasBegun = new Promise((resolve) => { begun = resolve; });
let count = 0;
staying.addMessage({ id: crypto.randomUUID(), role: "user", content: `hold ${gate}` });
const stayed = staying.runAgent({}, { onTextMessageContentEvent: () => { if (++count === 5) begun(); } });
await hasBegun;
let attached = 0;
const watcher = { onTextMessageStartEvent: () => { if (++attached === 2) writeFileSync(join(gates, gate), ""); } };
await Promise.all([stayed, leaving.connectAgent({}, watcher), cold.connectAgent({}, watcher)]);
const second = open(threadId);
await second.connectAgent();
second.addMessage({ id: crypto.randomUUID(), role: "user", content: "again" });
await second.runAgent();
const seen = (agent) => ({ messages: agent.messages, state: agent.state });
process.stdout.write(JSON.stringify({
  threadId, complaints, staying: seen(staying), leaving: seen(leaving), cold: seen(cold), second: seen(second),
}));
process.exit(0);
