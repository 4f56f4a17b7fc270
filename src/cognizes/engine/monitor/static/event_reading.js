// Reads stored events, in the formats of Google ADK (`content.parts`) and of the engine.

import { questionOf } from "./answers.js";
import { mediaOf } from "./attachments.js";
import { argumentsOf, summary } from "./format.js";
import { isCut } from "./value_tree.js";

const ROLES = { user_message: "user", assistant_message: "assistant", system_message: "system" };
const SPEAKERS = { user: "user", assistant: "assistant", model: "assistant", system: "system", tool: "tool" };
const QUESTION = "adk_request_";
const BOOKKEEPING = ["agent_state", "end_of_agent"];
const CONFIRMATION = { type: "object", properties: { confirmed: { type: "boolean" } }, required: ["confirmed"] };

/** @returns a list of { kind: "message" | "thought" | "call" | "result" | "question" | "step" | "run" | "state" | "action" | "error" | "other", … }; empty for bookkeeping of ADK */
export function readEvent(event) {
  const isShown = !isBookkeeping(event);
  const parts = isShown ? [...contentParts(event)] : [];
  const delta = event.actions?.state_delta;
  if (delta && typeof delta === "object" && Object.keys(delta).length) parts.push({ kind: "state", delta });
  else if (isCut(event.actions)) parts.push({ kind: "state", delta: null });
  if (!parts.length && isShown) parts.push({ kind: "other" });
  return parts;
}

/** Whether an event only keeps what a resumable app of ADK resumes from: the state or the end of an agent, without content. */
function isBookkeeping({ content, event_type: type, actions }) {
  if (!content?.adk || content.parts?.length || type === "error") return false;
  const names = Object.keys(actions ?? {}).filter((name) => name !== "state_delta");
  return names.length > 0 && names.every((name) => BOOKKEEPING.includes(name));
}

function* contentParts(event) {
  const { content, event_type: type } = event;
  if (isCut(content)) {
    if (content.preview !== undefined) yield { kind: "message", role: speaker(event) ?? named(content.role) ?? "assistant", text: content };
    else yield { kind: "other" };
    return;
  }
  if (type.startsWith("run_")) {
    yield { kind: "run", status: RUN_WORDS[type] ?? type.slice(4), error: content.error, waitKind: content.wait_kind, waitKey: content.correlation_key, reason: content.reason };
  } else if (type === "decision_asked") {
    const asked = { id: String(content.decision_id ?? event.id), kind: "approval", message: content.message, metadata: { toolName: content.tool_name ?? "a tool", arguments: argumentsOf(content.tool_input ?? {}) } };
    yield { kind: "question", question: questionOf(asked) };
  } else if ((type === "step_start" || type === "step_end") && typeof content.step_name === "string") {
    yield { kind: "step", name: content.step_name, isStart: type === "step_start" };
  } else if (type === "interrupt" && Array.isArray(content.interrupts)) {
    // The event `run_waiting` says what else the code of an agent waits for.
    const asked = content.interrupts.filter((one) => typeof one?.id === "string" && (one.metadata?.cognizes?.wait ?? "human") === "human");
    for (const one of asked) yield { kind: "question", question: questionOf(one) };
  } else if (type === "resume" && Array.isArray(content.answers)) {
    for (const one of content.answers) yield { kind: "action", text: `Answer: ${summary(one?.payload ?? null)}` };
  } else if (type === "decision_answered") {
    yield { kind: "action", text: content.approved ? "Approved" : "Denied" };
  } else if (type === "monitor_action") {
    yield { kind: "action", text: actionText(content) };
  } else if (!Array.isArray(content.parts) && typeof content.adk?.error_message === "string") {
    yield { kind: "error", text: content.adk.error_message };
  } else if (Array.isArray(content.parts) && !content.adk && speaker(event) === "user") {
    yield* userParts(content);
  } else if (Array.isArray(content.parts)) {
    yield* adkParts(event, content);
  } else if (type === "act" || type === "tool_call") {
    yield { kind: "call", id: String(content.tool_call_id ?? event.id), name: content.tool_name ?? content.name ?? "tool", args: argumentsOf(content.tool_input ?? content.args ?? {}) };
  } else if (type === "observe" || type === "tool_result") {
    yield {
      kind: "result", id: String(content.tool_call_id ?? event.id), result: content.observation ?? content.output ?? content,
      isError: content.is_error === true,
    };
  } else if (type === "thought") {
    yield { kind: "thought", text: content.thought ?? content.text ?? "" };
  } else if (type !== "state_update") {
    const role = speaker(event);
    const media = role === "user" ? mediaOf(content) : [];
    const said = content.text ?? content.content;
    const text = Array.isArray(said) ? said.filter((part) => typeof part?.text === "string").map((part) => part.text).join("\n") : said;
    if (role && (typeof text === "string" || isCut(text))) yield { kind: "message", role, text, media, interrupted: content.interrupted === true };
    else yield { kind: "other" };
  }
}

/** The role in which an event speaks, as the server decides it; null when it is no message. */
function speaker({ event_type: type, content, author }) {
  if (type !== "message") return ROLES[type] ?? null;
  return named(content.role) ?? (["user", "system", "tool"].includes(author) ? author : "assistant");
}

function named(role) {
  return typeof role === "string" && Object.hasOwn(SPEAKERS, role) ? SPEAKERS[role] : null;
}

/** What a user says is text: a part that looks like a tool call or a thought is not shown as one. */
function* userParts(content) {
  const text = content.parts.filter((part) => part && typeof part.text === "string" && !part.thought).map((part) => part.text).join("");
  const media = mediaOf(content);
  if (text || media.length) yield { kind: "message", role: "user", text, media };
}

function* adkParts(event, content) {
  const role = event.author === "user" ? "user" : "assistant";
  const { requested_tool_confirmations: confirmations, requested_auth_configs: credentials } = event.actions ?? {};
  const unconfirmed = new Set(Object.keys({ ...confirmations, ...credentials }));
  const media = role === "user" ? mediaOf(content) : [];
  if (media.length) yield { kind: "message", role, text: content.parts.map((part) => part?.text).filter((text) => typeof text === "string").join("\n"), media };
  let number = 0;
  for (const part of content.parts) {
    const fallback = `${event.id}/${number++}`;
    if (part === null || typeof part !== "object") continue;
    if (part.text && !media.length) yield part.thought ? { kind: "thought", text: part.text } : { kind: "message", role, text: part.text };
    const call = part.function_call;
    if (call && event.author !== "user") {
      if (String(call.name ?? "").startsWith(QUESTION)) yield question(call, fallback);
      else yield { kind: "call", id: call.id ?? fallback, name: call.name ?? "tool", args: call.args ?? {} };
    }
    const answer = part.function_response;
    if (!answer) continue;
    if (String(answer.name ?? "").startsWith(QUESTION)) {
      const { confirmed } = answer.response ?? {};
      yield { kind: "action", text: typeof confirmed === "boolean" ? (confirmed ? "Approved" : "Denied") : `Answer: ${summary(answer.response ?? null)}` };
    } else if (unconfirmed.has(answer.id)) {
      yield { kind: "result", id: answer.id, waiting: true };
    } else {
      yield { kind: "result", id: answer.id ?? fallback, name: answer.name, result: answer.response, isError: Boolean(answer.response?.error) };
    }
  }
  if (!content.parts.length && content.adk?.error_message) yield { kind: "error", text: content.adk.error_message };
}

function question(call, fallback) {
  const { originalFunctionCall: original, toolConfirmation: confirmation, ...metadata } = call.args ?? {};
  const id = call.id ?? fallback;
  if (!original) return { kind: "question", question: questionOf({ id, metadata }) };
  return {
    kind: "question",
    question: questionOf({ id, message: confirmation?.hint, tool_call_id: original.id, response_schema: CONFIRMATION, metadata: { toolName: original.name, arguments: original.args ?? {} } }),
  };
}

function actionText(content) {
  const words = { cancel: "Cancelled the run", approve: "Approved", deny: "Denied", answer: "Answered", signal: "Sent a signal" };
  const key = content.correlation_key ? ` “${content.correlation_key}”` : "";
  return `${words[content.action] ?? content.action ?? "Action"}${key}`;
}

const RUN_WORDS = {
  run_created: "pending",
  run_started: "running",
  run_waiting: "waiting",
  run_resumed: "resumed",
  run_finished: "completed",
  run_failed: "failed",
  run_cancelled: "cancelled",
  run_released: "released",
};

/** Whether an event ends its run. */
export function endsRun(type) {
  return type === "run_finished" || type === "run_failed" || type === "run_cancelled";
}
