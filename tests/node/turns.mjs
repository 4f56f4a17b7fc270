// Runs conversations with a real AG-UI client and prints what the client holds in the end, as JSON.
// node turns.mjs <agui-0|agui-1> <url of the server> <user> <directory of gates>

import { writeFileSync } from "node:fs";
import { join } from "node:path";

const [client, server, user, gates] = process.argv.slice(2);
const { HttpAgent, runHttpRequest, transformHttpEventStream } = await import(client);

// The client warns on the console about events it does not like. Such a warning is a failure here.
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

function open(agent, threadId = crypto.randomUUID()) {
  return new Agent({ url: `${server}/agui/${agent}`, agentId: agent, threadId, headers: { "X-User-ID": user } });
}

function say(agent, text) {
  agent.addMessage({ id: crypto.randomUUID(), role: "user", content: text });
}

async function turn(agent, text, parameters = {}) {
  if (text) say(agent, text);
  let finished;
  let failure;
  const watcher = {
    onRunFinishedEvent: ({ event }) => { finished = event; },
    onRunErrorEvent: ({ event }) => { failure = event; },
  };
  await agent.runAgent(parameters, watcher);
  return { finished, failure };
}

function seen(agent, more = {}) {
  return { agent: agent.agentId, threadId: agent.threadId, messages: agent.messages, state: agent.state, ...more };
}

// Starts a turn and leaves when some words have come, as a closed tab does.
async function leave(agent, text, words) {
  say(agent, text);
  let count = 0;
  const watcher = { onTextMessageContentEvent: () => { if (++count === words) agent.abortRun(); } };
  await agent.runAgent({}, watcher).catch(() => undefined);
}

const conversations = {
  async one_turn() {
    const agent = open("team");
    await turn(agent, "a poem, please");
    return seen(agent);
  },
  async tool_turn() {
    const agent = open("demo");
    await turn(agent, "hello");
    return seen(agent);
  },
  async three_turns() {
    const agent = open("demo");
    for (const text of ["one", "two", "three"]) await turn(agent, text);
    return seen(agent);
  },
  async error() {
    const agent = open("failing");
    const { failure } = await turn(agent, "go");
    return seen(agent, { failure });
  },
  async interrupt_and_resume() {
    const agent = open("demo");
    const { finished } = await turn(agent, "delete my diary");
    const interrupts = finished.outcome.interrupts;
    const resume = interrupts.map(({ id }) => ({ interruptId: id, status: "resolved", payload: { confirmed: true } }));
    const resumed = await turn(agent, null, { resume });
    return seen(agent, { interrupts, outcome: resumed.finished.outcome ?? null });
  },
  async client_tool() {
    const agent = open("painter");
    const tools = [{ name: "pick_colour", description: "Asks the user.", parameters: { type: "object" } }];
    await turn(agent, "paint", { tools });
    const call = agent.messages.at(-1).toolCalls[0];
    const reloaded = open("painter", agent.threadId);
    let waiting;
    const watcher = { onRunFinishedEvent: ({ event }) => { waiting = event.outcome?.pendingToolCallIds ?? null; } };
    await reloaded.connectAgent({}, watcher);
    agent.addMessage({ id: crypto.randomUUID(), role: "tool", toolCallId: call.id, content: "blue" });
    await turn(agent, null, { tools });
    await agent.connectAgent(); // what the client wrote itself is JSON in the log, and is sent as such
    return seen(agent, { call: call.id, waiting });
  },
  async cancelled() {
    const agent = open("slow");
    say(agent, "hold for ever");
    let stopped;
    let outcome;
    const stop = () => {
      const body = JSON.stringify({ threadId: agent.threadId });
      const headers = { "Content-Type": "application/json", "X-User-ID": user };
      stopped ??= fetch(`${server}/agui/slow/cancel`, { method: "POST", headers, body }).then((answer) => answer.json());
    };
    const watcher = {
      onTextMessageContentEvent: stop,
      onRunFinishedEvent: ({ event }) => { outcome = event.outcome ?? null; },
    };
    await agent.runAgent({}, watcher);
    return seen(agent, { stopped: await stopped, outcome });
  },
  async connect_in_the_middle() {
    const warm = open("slow");
    const gate = crypto.randomUUID();
    await leave(warm, `hold ${gate}`, 5);
    const partial = warm.messages.at(-1).content;
    const cold = open("slow", warm.threadId);
    // The run continues when both are in the middle of it.
    let attached = 0;
    const watcher = { onTextMessageStartEvent: () => { if (++attached === 2) writeFileSync(join(gates, gate), ""); } };
    await Promise.all([warm.connectAgent({}, watcher), cold.connectAgent({}, watcher)]);
    const first = structuredClone(warm.messages);
    await Promise.all([warm.connectAgent(), cold.connectAgent()]);
    return seen(warm, { partial, first, cold: cold.messages, coldState: cold.state });
  },
};

const results = {};
for (const [name, converse] of Object.entries(conversations)) results[name] = await converse();
process.stdout.write(JSON.stringify({ results, complaints }));
process.exit(0);
