// The client against servers that answer wrongly: broken streams, HTML pages, refusals, silence. No engine.

import assert from "node:assert/strict";
import { createServer } from "node:http";
import { test } from "node:test";

import { ApiError, CognizesClient, ConflictError, ConnectionLostError, EventParser, InvalidResponseError, NotFoundError, TimeoutError, TooManyRequestsError, UnavailableError, applyPatch, newId } from "@cognizes/client";

/** A server whose answers are a function of the request. `open` holds the requests that are in progress: sockets without
 * a request belong to the pool of node. */
async function serving(answer) {
  const server = createServer((request, response) => {
    server.open.add(response);
    response.on("close", () => server.open.delete(response));
    server.requests.push({ method: request.method, url: request.url, headers: request.headers });
    Promise.resolve(answer(request, response, server.requests.length)).catch((error) => response.destroy(error));
  });
  server.requests = [];
  server.open = new Set();
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  server.origin = `http://127.0.0.1:${server.address().port}`;
  server.stop = () => new Promise((resolve) => { server.closeAllConnections(); server.close(resolve); });
  return server;
}

async function withServer(answer, use, options = {}) {
  const server = await serving(answer);
  try {
    return await use(new CognizesClient({ baseUrl: server.origin, ...options }), server);
  } finally {
    await server.stop();
  }
}

const json = (response, status, body, headers = {}) => {
  response.writeHead(status, { "content-type": status < 400 ? "application/json" : "application/problem+json", ...headers });
  response.end(JSON.stringify(body));
};
const problem = (response, status, detail, more = {}, headers = {}) =>
  json(response, status, { type: "about:blank", title: "x", status, detail, request_id: "r1", ...more }, headers);
const openStream = (response) => response.writeHead(200, { "content-type": "text/event-stream; charset=utf-8" });
const frame = (data, id) => `${id === undefined ? "" : `id: ${id}\n`}data: ${JSON.stringify(data)}\n\n`;
const START = { type: "TEXT_MESSAGE_START", messageId: "m", role: "assistant" };
const content = (delta) => ({ type: "TEXT_MESSAGE_CONTENT", messageId: "m", delta });
const END = { type: "TEXT_MESSAGE_END", messageId: "m" };
const FINISHED = { type: "RUN_FINISHED", runId: "r", threadId: "t", status: "completed" };
const fast = { firstDelayMs: 1, longestDelayMs: 5 };

async function collected(frames) {
  const all = [];
  for await (const one of frames) all.push(one);
  return all;
}

/** The text as a reader of the frames holds it. */
function textOf(frames) {
  let text = "";
  for (const one of frames) {
    if (one.type === "RESET" || one.type === "TEXT_MESSAGE_START") text = "";
    if (one.type === "TEXT_MESSAGE_CONTENT") text += one.delta;
  }
  return text;
}

async function until(condition) {
  const deadline = Date.now() + 20_000;
  while (!condition()) {
    if (Date.now() > deadline) throw new Error(`never: ${condition}`);
    await new Promise((resolve) => setTimeout(resolve, 2));
  }
}

test("lines may end in LF, CR or CRLF, at any split", () => {
  const text = "\uFEFF: comment\r\nid: 1\r\nevent: signal\rdata: one\r\ndata:two\n\r\ndata: three\r\rdata\n\n: x\n\nretry: 5\n\nignored: x\ndata:  y\n\ndata: lost";
  const expected = [["signal", "one\ntwo", "1", true], ["message", "three", "1", false], ["message", "", "1", false], ["message", " y", "1", false]];
  for (let size = 1; size <= text.length; size++) {
    const parser = new EventParser();
    const events = [];
    for (let at = 0; at < text.length; at += size) events.push(...parser.push(text.slice(at, at + size)));
    assert.deepEqual(events.map((event) => [event.type, event.data, event.id, event.hasId]), expected, `pieces of ${size}`);
  }
});

test("a huge event in small pieces is joined once, and a limit holds", () => {
  const parser = new EventParser();
  const piece = "x".repeat(4096);
  const began = process.cpuUsage();
  parser.push("data: ");
  for (let count = 0; count < 8192; count++) assert.deepEqual(parser.push(piece), []);
  const [event] = parser.push("\n\n");
  assert.equal(event.data.length, 4096 * 8192);
  assert.ok(process.cpuUsage(began).user < 5_000_000, "joining is not linear");
  const limited = new EventParser(100);
  limited.push(": " + "c".repeat(90) + "\n");
  limited.push(": " + "c".repeat(90) + "\n");
  limited.push("data: " + "d".repeat(80));
  assert.throws(() => limited.push("d".repeat(80)), InvalidResponseError);
});

test("characters that are split between packets arrive whole", async () => {
  const text = "naïve 🙂 漢字 👩‍👩‍👧";
  const bytes = Buffer.from(frame(START) + frame(content(text)) + frame(END, 1) + frame(FINISHED, 2));
  await withServer(async (_, response) => {
    openStream(response);
    for (const byte of bytes) {
      response.write(Buffer.from([byte]));
      await new Promise((resolve) => setImmediate(resolve));
    }
    response.end();
  }, async (client) => {
    assert.equal(textOf(await collected(client.runs.follow("r", fast))), text);
  });
});

test("a run is followed over lost connections, to the character and without repetitions", async () => {
  const whole = "The quick brown fox jumps over the lazy dog. 🙂";
  const resumed = [];
  await withServer(async (request, response, count) => {
    resumed.push(request.headers["last-event-id"] ?? null);
    openStream(response);
    if (count === 1) response.write(frame({ type: "RUN_STARTED", runId: "r", threadId: "t" }, 1));
    // The message begins again with each connection, and is cut further on each time.
    const shown = Math.min(whole.length, count * 7);
    response.write(frame(START));
    for (let at = 0; at < shown; at += 3) response.write(frame(content(whole.slice(at, Math.min(at + 3, shown)))));
    if (shown < whole.length) {
      if (count % 2) response.write("data: {\"type\": \"TEXT_MESSAGE_CONTENT\", \"messageId\": \"m\", \"delta\": \"never compl");
      setTimeout(() => response.destroy(), 5);
      return;
    }
    response.write(frame(END, 2));
    response.end(frame(FINISHED, 3));
  }, async (client) => {
    const frames = await collected(client.runs.follow("r", fast));
    assert.equal(frames.filter((one) => one.type === "TEXT_MESSAGE_CONTENT").map((one) => one.delta).join(""), whole);
    assert.deepEqual(frames.filter((one) => one.type !== "TEXT_MESSAGE_CONTENT").map((one) => one.type), ["RUN_STARTED", "TEXT_MESSAGE_START", "TEXT_MESSAGE_END", "RUN_FINISHED"]);
    assert.deepEqual([...new Set(resumed)], [null, "1"]);
    assert.equal(frames.at(-1).cursor, 3);
  });
});

test("frames of an event that was cut in the middle are delivered once", async () => {
  const call = [{ type: "TOOL_CALL_START", toolCallId: "c", toolCallName: "look" }, { type: "TOOL_CALL_ARGS", toolCallId: "c", delta: "{}" }];
  await withServer((_, response, count) => {
    openStream(response);
    response.write(frame(call[0]));
    if (count === 1) return void setTimeout(() => response.destroy(), 5);
    response.end(frame(call[1]) + frame({ type: "TOOL_CALL_END", toolCallId: "c" }, 1) + frame(FINISHED, 2));
  }, async (client) => {
    const frames = await collected(client.runs.follow("r", fast));
    assert.deepEqual(frames.map((one) => one.type), ["TOOL_CALL_START", "TOOL_CALL_ARGS", "TOOL_CALL_END", "RUN_FINISHED"]);
  });
});

test("text that the server stored differently, or shorter, or not at all, replaces what was delivered", async () => {
  for (const [stored, expected] of [["Hello there", "Hello there"], ["Hel", "Hel"], ["Help", "Help"], [null, ""]]) {
    await withServer((_, response, count) => {
      openStream(response);
      if (count === 1) {
        response.write(frame(START) + frame(content("Hello")));
        return void setTimeout(() => response.destroy(), 5);
      }
      const message = stored === null ? "" : frame(START) + frame(content(stored)) + frame(END, 4);
      response.end(message + frame(FINISHED, 5));
    }, async (client) => {
      assert.equal(textOf(await collected(client.runs.follow("r", fast))), expected);
    });
  }
});

test("a thread that lost events is read again: 409, and a frame in the stream", async () => {
  await withServer((request, response, count) => {
    if (request.url.startsWith("/api/runs/r/events")) {
      if (request.headers["last-event-id"] === "9") return problem(response, 409, "the thread ends before event 9");
      openStream(response);
      if (count < 4) return response.end(frame(START) + frame(content("old")) + frame(END, 4) + frame({ type: "RUN_ERROR", message: "rewound", code: "FEED_REWOUND" }));
      return response.end(frame(START) + frame(content("new")) + frame(END, 2) + frame(FINISHED, 3));
    }
    problem(response, 404, "no run");
  }, async (client) => {
    const frames = await collected(client.runs.follow("r", { ...fast, after: 9 }));
    assert.equal(frames[0].type, "RESET");
    assert.equal(frames.filter((one) => one.type === "RESET").length, 2);
    assert.equal(textOf(frames), "new");
  });
});

test("a 409 without a cursor is an error, and so is a frame that is not JSON", async () => {
  await withServer((_, response) => problem(response, 409, "several threads have a run r"), async (client) => {
    await assert.rejects(collected(client.runs.follow("r", fast)), (error) => error instanceof ConflictError && /several/.test(error.detail));
  });
  await withServer((_, response) => { openStream(response); response.end("data: <html>\n\n"); }, async (client) => {
    await assert.rejects(collected(client.runs.follow("r", fast)), InvalidResponseError);
  });
});

test("a page of a proxy is a clear error at first, and temporary later", async () => {
  const page = (response, status) => {
    response.writeHead(status, { "content-type": "text/html" });
    response.end("<html><head><title>Sign in</title></head><body><h1>Please\n sign in</h1></body></html>");
  };
  await withServer((_, response) => page(response, 200), async (client) => {
    await assert.rejects(collected(client.runs.follow("r", fast)), (error) => error instanceof InvalidResponseError && /text\/html.*Please sign in/.test(error.message));
    await assert.rejects(client.sessions.get("t"), (error) => error instanceof InvalidResponseError && /Sign in/.test(error.message));
  });
  await withServer((_, response) => page(response, 502), async (client) => {
    await assert.rejects(client.sessions.get("t"), (error) => error instanceof UnavailableError && error.status === 502 && error.problem === null && /Please sign in/.test(error.detail));
  }, { retries: 0 });
  await withServer((_, response, count) => {
    if (count === 2) return page(response, 200);
    openStream(response);
    if (count === 1) return void response.end(frame(START) + frame(content("a")));
    response.end(frame(START) + frame(content("ab")) + frame(END, 1) + frame(FINISHED, 2));
  }, async (client) => {
    assert.equal(textOf(await collected(client.runs.follow("r", fast))), "ab");
  });
});

test("calls that may be repeated are repeated, others are not", async () => {
  const flaky = (request, response, count) => {
    if (count === 1) return problem(response, 503, "no database", {}, { "retry-after": "0" });
    if (count === 2) return void response.destroy();
    json(response, 200, { id: "e", sequence_num: 7, version: 1, created_at: "2026-01-01T00:00:00Z" });
  };
  await withServer(flaky, async (client, server) => {
    const appended = await client.sessions.append("t", { author: "a", event_type: "note" });
    assert.equal(appended.sequence_num, 7);
    assert.equal(server.requests.length, 3);
    await client.sessions.get("t");
    assert.equal(server.requests.at(-1).headers["x-seen-sequence"], "7");
  });
  await withServer(flaky, async (client, server) => {
    await assert.rejects(client.sessions.changeState("t", { a: 1 }), (error) => error instanceof UnavailableError && error.retryAfterMs === 0 && error.requestId === "r1");
    assert.equal(server.requests.length, 1);
  });
  await withServer((_, response, count) => (count === 1 ? problem(response, 429, "slow down", {}, { "retry-after": "0" }) : json(response, 200, { sequence_num: 1 })), async (client, server) => {
    await client.sessions.changeState("t", { a: 1 }); // refused before it was executed
    assert.equal(server.requests.length, 2);
  });
  await withServer((_, response) => problem(response, 429, "slow down", {}, { "retry-after": "0" }), async (client, server) => {
    await assert.rejects(client.sessions.get("t"), TooManyRequestsError);
    assert.equal(server.requests.length, 3);
  }, { retries: 2 });
});

test("ids exist also on pages without HTTPS", () => {
  const { randomUUID } = crypto;
  crypto.randomUUID = undefined;
  try {
    const ids = Array.from({ length: 100 }, newId);
    assert.equal(new Set(ids).size, 100);
    for (const id of ids) assert.match(id, /^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/);
  } finally {
    crypto.randomUUID = randomUUID;
  }
});

test("the resends of an append carry the same id", async () => {
  const ids = [];
  await withServer(async (request, response, count) => {
    let body = "";
    for await (const piece of request) body += piece;
    ids.push(JSON.parse(body).id);
    if (count === 1) return void response.destroy();
    json(response, 200, { id: ids[0], sequence_num: 1, version: 0, created_at: "" });
  }, async (client) => {
    await client.sessions.append("t", { author: "a", event_type: "note" });
    assert.equal(ids.length, 2);
    assert.ok(ids[0]);
    assert.equal(ids[0], ids[1]);
  });
});

test("a deletion whose answer was lost is a success", async () => {
  await withServer((_, response, count) => (count === 1 ? void response.destroy() : problem(response, 404, "gone")), (client) => client.sessions.delete("t"));
  await withServer((_, response) => problem(response, 404, "never there"), (client) => assert.rejects(client.sessions.delete("t"), NotFoundError));
});

test("time limits and abort signals", async () => {
  await withServer(() => {}, async (client, server) => {
    await assert.rejects(client.sessions.get("t", { timeoutMs: 20 }), TimeoutError);
    const controller = new AbortController();
    const call = client.sessions.get("t", { signal: controller.signal });
    await until(() => server.requests.length === 2);
    controller.abort(new Error("changed my mind"));
    await assert.rejects(call, /changed my mind/);
    await assert.rejects(client.sessions.get("t", { signal: controller.signal }), /changed my mind/);
    await until(() => server.open.size === 0);
  }, { retries: 0 });
  const closed = await serving(() => {});
  await closed.stop();
  await assert.rejects(new CognizesClient({ baseUrl: closed.origin, retries: 1 }).sessions.get("t"), ConnectionLostError);
});

test("a silent stream is opened again", async () => {
  await withServer((_, response, count) => {
    openStream(response);
    response.write(frame(START) + frame(content("a")));
    if (count > 1) response.end(frame(END, 1) + frame(FINISHED, 2));
  }, async (client, server) => {
    assert.equal(textOf(await collected(client.runs.follow("r", { ...fast, silenceMs: 30 }))), "a");
    assert.ok(server.requests.length >= 2);
  });
});

test("leaving a stream at any moment closes its socket and leaves no timer", async () => {
  let refuses = false;
  await withServer((_, response) => {
    if (refuses) return void response.destroy();
    openStream(response);
    response.write(frame(START) + frame(content("a")));
  }, async (client, server) => {
    for await (const one of client.runs.follow("r", fast)) if (one.type === "TEXT_MESSAGE_CONTENT") break;
    await until(() => server.open.size === 0);
    const controller = new AbortController();
    const states = [];
    const reading = collected(client.runs.follow("r", { firstDelayMs: 60_000, signal: controller.signal, onConnection: (state) => states.push(state) }));
    await until(() => states.includes("open"));
    refuses = true;
    server.closeAllConnections();
    await until(() => states.includes("reconnecting"));
    controller.abort(); // during the pause before the next connection
    await assert.rejects(reading, { name: "AbortError" });
    assert.deepEqual(process.getActiveResourcesInfo().filter((name) => name === "Timeout"), []);
    assert.equal(server.open.size, 0);
  });
});

test("a subscription of signals is refused, closed during a reconnection, and leaves nothing", async () => {
  await withServer((_, response) => problem(response, 404, "there is no context c"), async (client) => {
    const copy = client.signals("c", fast);
    const errors = [];
    copy.on("error", ({ error, during }) => errors.push([during, error.status]));
    await assert.rejects(copy.start(), (error) => error instanceof NotFoundError);
    assert.deepEqual(errors.at(-1), ["connect", 404]);
  });
  let isGone = false;
  await withServer((request, response) => {
    if (isGone) return void response.destroy();
    if (!request.url.endsWith("/events")) return json(response, 200, request.url.endsWith("/metadata") ? { current_state: "Idle", active_branch_name: "main" } : { messages: [], has_more: false });
    openStream(response);
    response.write(": hello\n\n");
  }, async (client, server) => {
    const copy = client.signals("c", { firstDelayMs: 60_000 });
    const connections = [];
    copy.on("connection", (one) => connections.push(one.reconnecting));
    await copy.start();
    isGone = true;
    server.closeAllConnections();
    await until(() => connections.includes(true));
    const waiting = copy.until(() => false);
    copy.close();
    await assert.rejects(waiting, /closed/);
    await until(() => server.open.size === 0);
    assert.deepEqual(process.getActiveResourcesInfo().filter((name) => name === "Timeout"), []);
  });
});

test("a thousand rapid signals become few pulls", async () => {
  const chunks = [];
  await withServer(async (request, response) => {
    const url = new URL(request.url, "http://x");
    if (url.pathname.endsWith("/metadata")) return json(response, 200, { current_state: "Idle", active_branch_name: "main" });
    if (url.pathname.endsWith("/messages")) return json(response, 200, { messages: [], has_more: false });
    if (url.pathname.endsWith("/streaming-chunks")) {
      const after = Number(url.searchParams.get("from_sequence"));
      await new Promise((resolve) => setTimeout(resolve, 5));
      return json(response, 200, { chunks: chunks.slice(after, after + 400), current_sequence: chunks.length, has_more: after + 400 < chunks.length });
    }
    openStream(response);
    let text = "";
    for (let number = 1; number <= 1000; number++) {
      chunks.push({ sequence: number, delta: `${number} ` });
      text += `id: ${number}\nevent: signal\ndata: {"type":"content_delta","context_id":"c","message_id":"m","current_sequence":${number}}\n\n`;
    }
    response.write(text + 'event: signal\ndata: {"type":"message_completed","context_id":"c","message_id":"m","final_sequence":1000}\n\n');
  }, async (client, server) => {
    const copy = client.signals("c", fast);
    await copy.start();
    await copy.until(() => copy.messages[0]?.isComplete ?? false);
    assert.equal(copy.messages[0].text, chunks.map((chunk) => chunk.delta).join(""));
    const pulls = server.requests.filter((request) => request.url.includes("streaming-chunks"));
    assert.ok(pulls.length < 20, `${pulls.length} pulls`);
    copy.close();
  });
});

test("ids are encoded, and such that would leave the path are refused", async () => {
  await withServer((request, response) => json(response, 200, { url: request.url }), async (client, server) => {
    await client.sessions.get("a/b?c#d é");
    assert.equal(server.requests[0].url, "/api/sessions/a%2Fb%3Fc%23d%20%C3%A9");
    await assert.rejects(client.sessions.get(".."), TypeError);
    await assert.rejects(client.sessions.get(""), TypeError);
    await client.call("GET /api/schedules", { query: { app_name: "a&b", limit: 3 } });
    assert.equal(server.requests.at(-1).url, "/api/schedules?app_name=a%26b&limit=3");
  });
});

test("keys, users and headers are sent", async () => {
  await withServer((_, response) => json(response, 200, {}), async (_, server) => {
    let key = "first";
    const client = new CognizesClient({ baseUrl: `${server.origin}/`, apiKey: async () => key, userId: "ada", headers: { "X-Trace": "1" } });
    await client.sessions.get("t");
    key = "second";
    await client.sessions.get("t", { headers: { "X-Trace": "2" } });
    assert.deepEqual(server.requests.map(({ headers }) => [headers.authorization, headers["x-user-id"], headers["x-trace"]]), [["Bearer first", "ada", "1"], ["Bearer second", "ada", "2"]]);
  });
});

test("a key or a user that a header cannot carry is refused at once", async () => {
  await withServer((_, response) => json(response, 200, {}), async (_, server) => {
    for (const wrong of [{ apiKey: "cgz_…" }, { apiKey: "cgz_x\r\nX-Evil: 1" }, { userId: "漢" }]) {
      await assert.rejects(new CognizesClient({ baseUrl: server.origin, ...wrong }).sessions.get("t"), TypeError);
    }
    assert.equal(server.requests.length, 0);
  });
});

test("a body that ends too early is a lost connection", async () => {
  await withServer((_, response) => {
    response.writeHead(200, { "content-type": "application/json", "content-length": "100" });
    response.write('{"thread_id":');
    setTimeout(() => response.destroy(), 5);
  }, async (client) => assert.rejects(client.sessions.get("t"), ConnectionLostError), { retries: 0 });
});

test("an unknown status is an ApiError with the text of the server", async () => {
  await withServer((_, response) => problem(response, 418, "a teapot"), async (client) => {
    await assert.rejects(client.sessions.get("t"), (error) => error.constructor === ApiError && error.status === 418 && error.detail === "a teapot" && error.message === "418 for GET /api/sessions/t: a teapot");
  });
});

test("JSON patches", () => {
  const state = { a: { b: [1, 2] }, keep: {} };
  const changed = applyPatch(state, [
    { op: "add", path: "/a/b/-", value: 3 }, { op: "replace", path: "/a/b/0", value: 0 }, { op: "remove", path: "/a/b/1" },
    { op: "add", path: "/x~1y~0z", value: null }, { op: "copy", from: "/a/b", path: "/c" }, { op: "move", from: "/x~1y~0z", path: "/n" },
    { op: "test", path: "/c", value: [0, 3] }, { op: "add", path: "/__proto__", value: { polluted: true } },
  ]);
  assert.deepEqual(Object.keys(changed), ["a", "keep", "c", "n", "__proto__"]);
  assert.deepEqual([changed.a, changed.c, changed.n], [{ b: [0, 3] }, [0, 3], null]);
  assert.deepEqual(state, { a: { b: [1, 2] }, keep: {} });
  assert.equal(changed.keep, state.keep);
  assert.equal({}.polluted, undefined);
  for (const bad of [{ op: "remove", path: "/no" }, { op: "add", path: "/a/b/9", value: 1 }, { op: "replace", path: "/toString", value: 1 }, { op: "add", path: "x", value: 1 }, { op: "odd", path: "" }]) {
    assert.throws(() => applyPatch(state, [bad]), TypeError);
  }
});
