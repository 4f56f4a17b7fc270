// How the Monitor reads stored events. Run by `node --test`.

import assert from "node:assert/strict";
import { test } from "node:test";

import { expectedAnswer, questionOf, typedAnswer } from "../../src/cognizes/engine/monitor/static/answers.js";
import { h } from "../../src/cognizes/engine/monitor/static/dom.js";
import { readEvent } from "../../src/cognizes/engine/monitor/static/event_reading.js";

const CALL = { function_call: { id: "c", name: "transfer", args: {} } };
const RESPONSE = { function_response: { id: "c", name: "transfer", response: { ok: true } } };

function event(fields) {
  return { id: "e", author: "user", event_type: "user_message", content: {}, actions: {}, ...fields };
}

/** An element whose classList refuses whitespace, as the DOM standard demands. */
class Element {
  classes = [];
  classList = {
    add: (...names) => {
      for (const name of names) if (name === "" || /[\t\n\f\r ]/.test(name)) throw new Error(`InvalidCharacterError: ${name}`);
      this.classes.push(...names);
    },
  };
  append() {}
}

test("a user's parts are text", () => {
  const parts = [{ text: "hel" }, CALL, RESPONSE, { text: "hm", thought: true }, null, { text: "lo" }];
  for (const type of ["user_message", "message"]) {
    assert.deepEqual(readEvent(event({ event_type: type, content: { parts } })), [{ kind: "message", role: "user", text: "hello", media: [] }]);
  }
});

test("a user of ADK calls no tools", () => {
  const kinds = readEvent(event({ content: { adk: { timestamp: 1 }, parts: [CALL, RESPONSE] } })).map((part) => part.kind);
  assert.deepEqual(kinds, ["result"]);
});

test("a result beside a question of ADK says that the call waits", () => {
  for (const requested of ["requested_tool_confirmations", "requested_auth_configs"]) {
    const [result] = readEvent(event({ author: "agent", event_type: "observe", content: { adk: {}, parts: [RESPONSE] }, actions: { [requested]: { c: {} } } }));
    assert.deepEqual(result, { kind: "result", id: "c", waiting: true });
  }
});

test("a content that looks cut keeps the speaker", () => {
  const cut = { $cut: "text", length: 1, preview: "x" };
  assert.equal(readEvent(event({ content: cut }))[0].role, "user");
  assert.equal(readEvent(event({ event_type: "observe", author: "tool", content: { ...cut, role: "tool" } }))[0].role, "tool");
});

test("a role that does not exist is not shown as one", () => {
  for (const role of ["assistant\tx", "constructor", 5, ["user"]]) {
    const [part] = readEvent(event({ event_type: "message", author: "planner", content: { text: "x", role } }));
    assert.equal(part.role, "assistant");
  }
  assert.equal(readEvent(event({ event_type: "message", author: "planner", content: { text: "x", role: "model" } }))[0].role, "assistant");
});

test("a class with any white space does not stop the page", () => {
  globalThis.document = { createElement: () => new Element() };
  assert.deepEqual(h("div.bubble", { class: "from-a\tb\n c" }).classes, ["bubble", "from-a", "b", "c"]);
});

test("the schema of a question decides what answers it", () => {
  const asked = (response_schema, more) => expectedAnswer(questionOf({ id: "q", response_schema, ...more }));
  assert.deepEqual(asked(null), { yes: ["Yes", true], no: ["No", false], texts: [], free: "any" });
  assert.deepEqual(asked(null, { kind: "approval" }).yes, ["Approve", true]);
  const approval = { type: "object", properties: { approved: { type: "boolean" }, editedArgs: { type: "object" }, reason: { type: "string" } }, required: ["approved"] };
  assert.deepEqual(asked(approval), { yes: ["Approve", { approved: true }], no: ["Deny", { approved: false }], texts: ["reason"], free: null });
  assert.deepEqual(asked({ type: "object", properties: { urgent: { type: "boolean" } } }).no, ["No: urgent", { urgent: false }]);
  assert.equal(asked({ type: "object", properties: { city: { type: "string" } }, required: ["city"] }).free, "json");
  assert.equal(asked({ type: "string" }).free, "text");
  assert.equal(typedAnswer("42", "text"), "42");
  assert.equal(typedAnswer("42", "any"), 42);
  assert.equal(typedAnswer("forty two", "any"), "forty two");
  assert.throws(() => typedAnswer("forty two", "json"), SyntaxError);
});

test("questions of every framework are questions", () => {
  const input = { function_call: { id: "i", name: "adk_request_input", args: { message: "Which city?", responseSchema: { type: "string" } } } };
  const [adk] = readEvent(event({ event_type: "assistant_message", author: "guide", content: { adk: {}, parts: [input] } }));
  assert.deepEqual([adk.kind, adk.question.message, expectedAnswer(adk.question).free], ["question", "Which city?", "text"]);
  const interrupts = [{ id: "a", reason: "interrupt", metadata: { value: { order: 1 } } }, { id: "b", message: "Which note?", responseSchema: { type: "boolean" } }];
  const parts = readEvent(event({ event_type: "interrupt", author: "clerk", content: { interrupts } }));
  assert.deepEqual(parts.map((part) => [part.kind, part.question.id, part.question.metadata.value]), [["question", "a", { order: 1 }], ["question", "b", undefined]]);
  assert.equal(expectedAnswer(parts[1].question).free, null);
  const answers = [{ interruptId: "a", status: "resolved", payload: { ok: true } }];
  assert.deepEqual(readEvent(event({ event_type: "resume", content: { answers } })), [{ kind: "action", text: "Answer: {ok: true}" }]);
});

test("the state and the end of an agent of ADK are no lines", () => {
  const ended = (actions, content = { adk: { timestamp: 1 } }) => readEvent(event({ event_type: "message", author: "shop", content, actions })).map((part) => part.kind);
  assert.deepEqual(ended({ end_of_agent: true }), []);
  assert.deepEqual(ended({ agent_state: { current_sub_agent: "clerk" } }), []);
  assert.deepEqual(ended({ end_of_agent: true, state_delta: { n: 1 } }), ["state"]);
  assert.deepEqual(ended({ end_of_agent: true }, { adk: { timestamp: 1 }, parts: [{ text: "bye" }] }), ["message"]);
  assert.deepEqual(ended({ end_of_agent: true, transfer_to_agent: "clerk" }), ["other"]);
  assert.deepEqual(ended({}), ["other"]);
  assert.deepEqual(ended({ end_of_agent: true }, {}), ["other"]);
});
