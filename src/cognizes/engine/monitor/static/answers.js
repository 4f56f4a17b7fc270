// Answers to the open questions of agents: what a question expects, and sending the answers of one run together.

import { get, post, startRun, thread } from "./api.js";

const DECISIONS = ["approved", "confirmed"];

/** A question of an agent in the form of `GET …/questions`, from an interrupt that is stored or a call of ADK. */
export function questionOf(raw) {
  const metadata = raw.metadata ?? {};
  return {
    ...raw,
    message: raw.message ?? (typeof metadata.message === "string" ? metadata.message : null),
    response_schema: raw.response_schema ?? raw.responseSchema ?? metadata.response_schema ?? metadata.responseSchema ?? null,
    tool_call_id: raw.tool_call_id ?? raw.toolCallId ?? null,
    metadata,
  };
}

/**
 * What answers a question: `{ yes, no }`, two labelled payloads, if it is a decision; `texts`, the names of optional
 * texts beside a decision; `free: "any" | "text" | "json"`, a field for a value. The schema of the question decides.
 */
export function expectedAnswer(question) {
  if (question.kind === "approval") return { yes: ["Approve", true], no: ["Deny", false], texts: [], free: null };
  const schema = question.response_schema;
  if (schema === null || typeof schema !== "object" || !Object.keys(schema).length) return { yes: ["Yes", true], no: ["No", false], texts: [], free: "any" };
  if (schema.type === "boolean") return { yes: ["Yes", true], no: ["No", false], texts: [], free: null };
  if (schema.type === "string") return { yes: null, no: null, texts: [], free: "text" };
  const properties = Object.entries(schema.properties ?? {});
  const required = schema.required ?? [];
  const booleans = properties.filter(([, one]) => one?.type === "boolean").map(([name]) => name);
  const name = booleans.find((one) => DECISIONS.includes(one)) ?? booleans.find((one) => required.includes(one)) ?? booleans[0];
  if (name === undefined || required.some((one) => one !== name)) return { yes: null, no: null, texts: [], free: "json" };
  const [yes, no] = DECISIONS.includes(name) ? ["Approve", "Deny"] : [`Yes: ${name}`, `No: ${name}`];
  const texts = properties.filter(([, one]) => one?.type === "string").map(([one]) => one);
  return { yes: [yes, { [name]: true }], no: [no, { [name]: false }], texts, free: null };
}

/** The value of a typed answer: JSON if it is JSON, else a text. Throws a SyntaxError where JSON is expected. */
export function typedAnswer(text, free) {
  if (free === "text") return text;
  try {
    return JSON.parse(text);
  } catch (error) {
    if (free === "json") throw error;
    return text;
  }
}

/** The answers that are given and not sent yet, by thread: an agent receives those to all its questions at once. */
export class Answers {
  /** `may(permission)` is whether the caller has it. */
  constructor(may) {
    this._may = may;
    this._given = new Map();
  }

  /** Forget answers to questions that are not open any more. */
  keepOnly(threadId, questions) {
    const given = this._given.get(threadId);
    if (!given) return;
    const open = new Set(questions.map((question) => question.id));
    for (const id of given.keys()) if (!open.has(id)) given.delete(id);
    if (!given.size) this._given.delete(threadId);
  }

  withdraw(threadId, questionId) {
    this._given.get(threadId)?.delete(questionId);
  }

  /** Send an answer, or keep it until the other `questions` of the agent have one. Returns how many have none. */
  async give(threadId, question, payload, questions) {
    if (question.kind === "approval") {
      await post(thread(threadId, `/approvals/${encodeURIComponent(question.id)}`), { approved: payload });
      return 0;
    }
    if (!this._given.has(threadId)) this._given.set(threadId, new Map());
    const given = this._given.get(threadId);
    given.set(question.id, payload);
    const together = questions.filter((one) => one.kind !== "approval");
    const missing = together.filter((one) => !given.has(one.id)).length;
    if (missing) return missing;
    await this._send(threadId, together.map((one) => [one.id, given.get(one.id)]));
    this._given.delete(threadId);
    return 0;
  }

  /** The answer of an administrator is audited; that of another caller goes to the agent as from any client. */
  async _send(threadId, answers) {
    if (this._may("admin")) return post(thread(threadId, "/answers"), { answers: Object.fromEntries(answers) });
    return startRun(await get(thread(threadId)), { resume: answers.map(([interruptId, payload]) => ({ interruptId, status: "resolved", payload })) });
  }
}
