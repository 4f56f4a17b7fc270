// Answers questions of a hosted agent and shares state with it by the real AG-UI client; prints what it saw, as JSON.
// node asking.mjs <agui-0|agui-1> <url of the server> <user> <agent>
// The agent asks before it forgets something, and names the `mood` of the state.

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

const threadId = crypto.randomUUID();
const open = () => new Agent({ url: `${server}/agui/${name}`, agentId: name, threadId, headers: { "X-User-ID": user } });
const seen = (agent) => structuredClone({ messages: agent.messages, state: agent.state });

async function follow(run) {
  const last = {};
  await run({
    onRunStartedEvent: ({ event }) => { last.runId = event.runId; },
    onRunFinishedEvent: ({ event }) => { last.outcome = event.outcome ?? null; },
    onRunErrorEvent: ({ event }) => { last.failure = event.message; },
  });
  return last;
}

function say(agent, content) {
  agent.addMessage({ id: crypto.randomUUID(), role: "user", content });
  return follow((subscriber) => agent.runAgent({}, subscriber));
}

function answer(agent, { outcome }, given) {
  const resume = outcome.interrupts.map(({ id }) => ({ interruptId: id, ...given }));
  return follow((subscriber) => agent.runAgent({ runId: `answer-${crypto.randomUUID()}`, resume }, subscriber));
}

// Another tab, which has only the thread's id, answers the question.
const first = open();
first.setState({ mood: "calm" });
const asked = await say(first, "forget the diary");
const reloaded = open();
const waiting = await follow((subscriber) => reloaded.connectAgent({}, subscriber));
const held = [seen(first), seen(reloaded)];
const approved = await answer(reloaded, waiting, { status: "resolved", payload: { approved: true } });
const afterwards = seen(reloaded);

// The state that the client changes reaches the next run; this question is dismissed.
reloaded.setState({ ...reloaded.state, mood: "sad" });
const again = await say(reloaded, "forget the letters");
const dismissed = await answer(reloaded, again, { status: "cancelled" });
const once = await say(reloaded, "forget the songs");
const last = await answer(reloaded, once, { status: "resolved", payload: { approved: true } });
const late = open();
await late.connectAgent();

process.stdout.write(JSON.stringify({
  threadId, complaints, asked, waiting, held, approved, afterwards, again, dismissed, last, end: [seen(reloaded), seen(late)],
}));
process.exit(0);
