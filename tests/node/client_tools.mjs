// Uses tools of the client with the real AG-UI client on a hosted agent, and prints what the client saw, as JSON.
// node client_tools.mjs <agui-0|agui-1> <url of the server> <user> <agent>
// The agent calls the tool `pick_colour`, and with "and look" also its own tool `look_up`.

const [client, server, user, name] = process.argv.slice(2);
const { HttpAgent, runHttpRequest, transformHttpEventStream } = await import(client);
const complaints = [];
for (const method of ["warn", "error"]) {
  console[method] = (...words) => complaints.push(words.map(String).join(" "));
}

class Agent extends HttpAgent {
  connect(input) {
    this.abortController = new AbortController();
    return transformHttpEventStream(runHttpRequest(() => fetch(`${this.url}/connect`, this.requestInit(input))));
  }
}

const parameters = { type: "object", properties: { of: { type: "string" } } };
const tools = [{ name: "pick_colour", description: "Asks the user for a colour.", parameters }];

function open(threadId = crypto.randomUUID()) {
  return new Agent({ url: `${server}/agui/${name}`, agentId: name, threadId, headers: { "X-User-ID": user } });
}

async function turn(agent, content, given = {}) {
  if (content) agent.addMessage({ id: crypto.randomUUID(), role: "user", content });
  const last = {};
  await agent.runAgent(given, {
    onRunFinishedEvent: ({ event }) => { last.outcome = event.outcome ?? null; },
    onRunErrorEvent: ({ event }) => { last.failure = event.message; },
  });
  return last;
}

const calls = (agent) => agent.messages.flatMap((message) => message.toolCalls ?? []);
const pick = (agent, content) => {
  const call = calls(agent).findLast((one) => one.function.name === "pick_colour");
  agent.addMessage({ id: crypto.randomUUID(), role: "tool", toolCallId: call.id, content });
};

const results = {};

// The client executes the tool; another tab, which has only the thread's id, brings the result.
const first = open();
const asked = await turn(first, "paint", { tools });
const reloaded = open(first.threadId);
let waiting = null;
await reloaded.connectAgent({}, { onRunFinishedEvent: ({ event }) => { waiting = event.outcome ?? null; } });
const held = structuredClone(reloaded.messages);
pick(reloaded, "blue");
const answered = await turn(reloaded, null, { tools });
results.answered = {
  asked, waiting, held, first: first.messages, answered, messages: reloaded.messages, state: reloaded.state,
  threadId: first.threadId,
};

// A call of the agent's own tool beside the client's.
const both = open();
await turn(both, "paint and look", { tools });
const before = structuredClone(both.messages);
pick(both, "green");
const finished = await turn(both, null, { tools });
results.both = { before, finished, messages: both.messages };

// The user continues without picking.
const ignored = open();
await turn(ignored, "paint", { tools });
const next = await turn(ignored, "never mind", { tools });
results.ignored = { next, messages: ignored.messages };

// Without tools in the input the model is offered none.
const plain = open();
const said = await turn(plain, "paint");
results.plain = { said, messages: plain.messages };

process.stdout.write(JSON.stringify({ results, complaints }));
process.exit(0);
