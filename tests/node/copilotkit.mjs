// Uses CopilotKit's own core as a page does, with the server as its runtime, and prints what it saw, as JSON.
// node copilotkit.mjs <url of the server> <user> <directory of gates>

import { writeFileSync } from "node:fs";
import { join } from "node:path";

globalThis.window = globalThis; // the core connects to its runtime only in a page
const { CopilotKitCore } = await import("@copilotkit/core");
const { z } = await import("zod");
const [server, user, gates] = process.argv.slice(2);
const errors = [];

async function open(threadId, agentId) {
  const core = new CopilotKitCore({ runtimeUrl: `${server}/copilotkit`, headers: { "X-User-ID": user } });
  core.subscribe({ onError: ({ code, error }) => { errors.push([code, String(error)]); } });
  await until(() => core.runtimeConnectionStatus === "connected");
  const agent = core.getAgent(agentId);
  agent.threadId = threadId;
  return { core, agent };
}

async function until(condition) {
  while (!condition()) await new Promise((resolve) => setTimeout(resolve, 10));
}

function say(agent, content) {
  agent.addMessage({ id: crypto.randomUUID(), role: "user", content });
}

const seen = ({ agent }) => ({ threadId: agent.threadId, messages: agent.messages, state: agent.state });
const results = {};

// A turn, and a page that is opened later.
const first = await open(crypto.randomUUID(), "demo");
say(first.agent, "hello");
await first.core.runAgent({ agent: first.agent });
const later = await open(first.agent.threadId, "demo");
await later.core.connectAgent({ agent: later.agent });
results.turn = {
  ...seen(first), later: seen(later), transport: first.core.runtimeTransport, agents: Object.keys(first.core.agents),
};

// A tool of the page: the core executes it and runs the agent again with the result.
const painting = await open(crypto.randomUUID(), "painter");
const calls = [];
const handler = async (given) => {
  calls.push(given);
  return "teal";
};
const parameters = z.object({ of: z.string() });
painting.core.addTool({ name: "pick_colour", description: "Asks the user.", parameters, handler });
say(painting.agent, "paint");
await painting.core.runAgent({ agent: painting.agent });
results.tool = { ...seen(painting), calls };

// A page that is opened in mid-run.
const gate = crypto.randomUUID();
const running = await open(crypto.randomUUID(), "slow");
say(running.agent, `hold ${gate}`);
const ran = running.core.runAgent({ agent: running.agent });
await until(() => (running.agent.messages.at(-1)?.content ?? "").includes("word5"));
const attached = await open(running.agent.threadId, "slow");
const connected = attached.core.connectAgent({ agent: attached.agent });
await until(() => (attached.agent.messages.at(-1)?.content ?? "").includes("word5"));
writeFileSync(join(gates, gate), "");
await Promise.all([ran, connected]);
results.attached = { ...seen(running), attached: seen(attached) };

// The stop button, and the next message.
const stopping = await open(crypto.randomUUID(), "slow");
say(stopping.agent, "hold for ever");
const stopped = stopping.core.runAgent({ agent: stopping.agent });
await until(() => (stopping.agent.messages.at(-1)?.content ?? "").includes("word5"));
stopping.core.stopAgent({ agent: stopping.agent });
await stopped;
results.stopped = seen(stopping);

process.stdout.write(JSON.stringify({ results, errors }));
process.exit(0);
