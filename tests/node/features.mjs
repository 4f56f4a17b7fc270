// Uses each feature of AG-UI with the real client, and prints what the client saw, as JSON.
// node features.mjs <agui-0|agui-1> <url of the server> <user> <directory of gates>

import { writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";

const [packageName, server, user, gates] = process.argv.slice(2);
const { HttpAgent, runHttpRequest, transformHttpEventStream } = await import(packageName);
const complaints = [];
for (const method of ["warn", "error"]) {
  console[method] = (...words) => complaints.push(words.map(String).join(" "));
}

class Agent extends HttpAgent {
  connect(input) {
    this.abortController = new AbortController(); // the one of the run may be spent
    return transformHttpEventStream(runHttpRequest(() => fetch(`${this.url}/connect`, this.requestInit(input))));
  }

  async getCapabilities() {
    const answer = await fetch(`${this.url}/capabilities`, { headers: this.headers });
    return answer.json();
  }
}

function open(agent, more = {}) {
  const headers = { "X-User-ID": user };
  return new Agent({ url: `${server}/agui/${agent}`, agentId: agent, threadId: crypto.randomUUID(), headers, ...more });
}

function say(agent, content) {
  agent.addMessage({ id: crypto.randomUUID(), role: "user", content });
}

async function turn(agent, content, parameters = {}) {
  if (content) say(agent, content);
  const events = [];
  const last = {};
  await agent.runAgent(parameters, {
    onEvent: ({ event }) => { events.push(event); },
    onRunFinishedEvent: ({ event }) => { last.finished = event; },
    onRunErrorEvent: ({ event }) => { last.failure = event; },
  });
  return { events, types: events.map((event) => event.type), ...last };
}

const reply = (agent) => agent.messages.at(-1).content;
const mirrored = (agent) => JSON.parse(reply(agent));
const letGo = (gate) => writeFileSync(join(gates, gate), "");

const features = {
  async agentic_chat() {
    const agent = open("demo");
    const { events } = await turn(agent, "hello");
    const deltas = events.filter((event) => event.type === "TEXT_MESSAGE_CONTENT").map((event) => event.delta);
    return { deltas, reply: reply(agent) };
  },
  async reasoning() {
    const agent = open("demo");
    await turn(agent, "hello");
    return { thoughts: agent.messages.filter((message) => message.role === "reasoning") };
  },
  async multimodal_input() {
    const agent = open("mirror");
    const data = Buffer.from([251, 239, 190, ...Buffer.from("a picture?")]).toString("base64"); // has + and /
    await turn(agent, [
      { type: "text", text: "look" },
      { type: "image", source: { type: "data", value: data, mimeType: "image/png" } },
      { type: "document", source: { type: "url", value: "https://example.org/a.pdf", mimeType: "application/pdf" } },
      { type: "audio", source: { type: "data", value: data, mimeType: "audio/wav" } },
    ]);
    const reloaded = open("mirror", { threadId: agent.threadId });
    await reloaded.connectAgent();
    return { contents: mirrored(agent).contents, held: agent.messages, reloaded: reloaded.messages };
  },
  async backend_tool_rendering() {
    const agent = open("demo");
    await turn(agent, "the weather");
    const calls = agent.messages.flatMap((message) => message.toolCalls ?? []);
    return { calls, results: agent.messages.filter((message) => message.role === "tool") };
  },
  async tool_based_generative_ui() {
    const agent = open("painter");
    const tools = [{ name: "pick_colour", description: "Shows colours.", parameters: { type: "object" } }];
    const { finished } = await turn(agent, "paint", { tools });
    return { call: agent.messages.at(-1).toolCalls[0], outcome: finished.outcome };
  },
  async human_in_the_loop() {
    const agent = open("painter");
    const tools = [{ name: "pick_colour", description: "Asks the user.", parameters: { type: "object" } }];
    await turn(agent, "paint", { tools });
    const call = agent.messages.at(-1).toolCalls[0];
    agent.addMessage({ id: crypto.randomUUID(), role: "tool", toolCallId: call.id, content: "green" });
    await turn(agent, null, { tools });
    return { reply: reply(agent) };
  },
  async interrupt_and_resume() {
    const agent = open("demo");
    const { finished } = await turn(agent, "delete my diary");
    const asked = finished.outcome.interrupts;
    const resume = asked.map(({ id }) => ({ interruptId: id, status: "resolved", payload: { confirmed: true } }));
    const resumed = await turn(agent, null, { resume });
    return { asked, outcome: resumed.finished.outcome ?? null, reply: reply(agent), state: agent.state };
  },
  async shared_state() {
    const agent = open("mirror");
    agent.setState({ mood: "cheerful" });
    await turn(agent, "how do I feel?");
    const writer = open("demo");
    writer.setState({ mood: "calm" });
    await turn(writer, "note this");
    return { read: JSON.parse(mirrored(agent).instruction.split("\n")[0]), state: writer.state };
  },
  async agentic_generative_ui() {
    const agent = open("demo");
    const { types } = await turn(agent, "hello");
    return { types, state: agent.state };
  },
  async context() {
    const agent = open("mirror");
    await turn(agent, "where am I?", { context: [{ description: "place", value: "the harbour" }] });
    return { read: JSON.parse(mirrored(agent).instruction.split("\n")[0]) };
  },
  async errors() {
    const agent = open("failing");
    const { failure, types } = await turn(agent, "go");
    return { failure, types, reply: reply(agent) };
  },
  async server_side_history() {
    const first = open("mirror");
    await turn(first, "my name is Ada");
    const second = open("mirror", { threadId: first.threadId }); // holds no message
    await turn(second, "what is my name?");
    return { contents: mirrored(second).contents.map((content) => content.slice(0, 2)) };
  },
  async sub_agents() {
    const agent = open("team");
    const { events } = await turn(agent, "a poem, please");
    return { items: events.filter((event) => /^(SUBAGENT|STEP)_/.test(event.type)), reply: reply(agent) };
  },
  async re_attach_in_mid_run() {
    const agent = open("slow");
    const gate = crypto.randomUUID();
    say(agent, `hold ${gate}`);
    let count = 0;
    const leave = { onTextMessageContentEvent: () => { if (++count === 5) agent.abortRun(); } };
    await agent.runAgent({}, leave).catch(() => undefined);
    const cold = open("slow", { threadId: agent.threadId });
    await cold.connectAgent({}, { onTextMessageStartEvent: () => letGo(gate) });
    return { threadId: cold.threadId, messages: cold.messages };
  },
  async predictive_state_updates() {
    // In Node, the ES module of the client cannot call the package that completes partial JSON; its CommonJS build can.
    const client = createRequire(import.meta.url)(packageName);
    const headers = { "X-User-ID": user };
    const agent = new client.HttpAgent({ url: `${server}/agui/editor`, threadId: crypto.randomUUID(), headers });
    say(agent, "write");
    const predictions = [];
    const order = [];
    const bridged = agent.legacy_to_be_removed_runAgentBridged({});
    await new Promise((resolve, reject) => {
      bridged.subscribe({
        next: (event) => {
          order.push(event.type);
          if (event.type === "MetaEvent") predictions.push(event);
          if (event.type === "AgentStateMessage") order.push(JSON.parse(event.state).document ?? null);
        },
        error: reject,
        complete: resolve,
      });
    });
    return { predictions, order };
  },
  async streamed_tool_arguments() {
    const agent = open("editor");
    const { events } = await turn(agent, "write");
    const deltas = events.filter((event) => event.type === "TOOL_CALL_ARGS").map((event) => event.delta);
    const call = agent.messages.flatMap((message) => message.toolCalls ?? [])[0];
    // A client that attaches while the arguments arrive, and one that comes later, hold the same.
    const gate = crypto.randomUUID();
    const staying = open("editor");
    const attaching = open("editor", { threadId: staying.threadId });
    say(staying, `hold ${gate}`);
    let attached;
    let seen = 0;
    const custom = [];
    const watcher = { onToolCallStartEvent: () => letGo(gate), onCustomEvent: ({ event }) => custom.push(event) };
    await staying.runAgent({}, {
      onToolCallArgsEvent: () => { if (++seen === 3) attached = attaching.connectAgent({}, watcher); },
    });
    await attached;
    const late = open("editor", { threadId: staying.threadId });
    await late.connectAgent();
    const held = [staying, attaching, late].map((one) => one.messages);
    return { deltas, arguments: call.function.arguments, held, custom, threadId: staying.threadId };
  },
  async own_history_in_a_new_thread() {
    const agent = open("mirror");
    agent.setMessages([
      { id: crypto.randomUUID(), role: "user", content: "my name is Ada" },
      { id: crypto.randomUUID(), role: "assistant", content: "Hello Ada.",
        toolCalls: [{ id: "c1", type: "function", function: { name: "greet", arguments: '{"name":"Ada"}' } }] },
      { id: crypto.randomUUID(), role: "tool", toolCallId: "c1", content: "greeted" },
      { id: crypto.randomUUID(), role: "assistant", content: "What else?" },
    ]);
    await turn(agent, "what is my name?");
    const contents = mirrored(agent).contents;
    const held = structuredClone(agent.messages);
    const reloaded = open("mirror", { threadId: agent.threadId });
    await reloaded.connectAgent();
    return { threadId: agent.threadId, contents, held, reloaded: reloaded.messages };
  },
  async next_message_after_abort() {
    const agent = open("slow");
    const forwardedProps = { cognizes: { onDisconnect: "cancel" } };
    say(agent, "hold for ever");
    let count = 0;
    const leave = { onTextMessageContentEvent: () => { if (++count === 5) agent.abortRun(); } };
    await agent.runAgent({ forwardedProps }, leave).catch(() => undefined);
    const { failure, finished } = await turn(agent, "now another thing", { forwardedProps });
    const queued = open("slow");
    const gate = crypto.randomUUID();
    say(queued, `hold ${gate}`);
    count = 0;
    const abort = { onTextMessageContentEvent: () => { if (++count === 5) queued.abortRun(); } };
    await queued.runAgent({}, abort).catch(() => undefined);
    const next = turn(queued, "and this after it", { forwardedProps: { cognizes: { onBusy: "queue" } } });
    letGo(gate);
    const after = await next;
    return {
      failure: failure ?? after.failure ?? null, finished, reply: reply(agent), queued: reply(queued),
      threadId: agent.threadId, queuedThreadId: queued.threadId,
    };
  },
  async capabilities() {
    return { capabilities: await open("demo").getCapabilities() };
  },
};

const results = {};
for (const [name, use] of Object.entries(features)) {
  try {
    results[name] = await use();
  } catch (error) {
    results[name] = { exception: String(error?.stack ?? error) };
  }
}
process.stdout.write(JSON.stringify({ results, complaints }));
process.exit(0);
