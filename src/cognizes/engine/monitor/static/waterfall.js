// The waterfall of a run: model calls, tools, steps, waits and thoughts, each at its share of the time of the run.

import { h, icon } from "./dom.js";
import { COST_UNIT, WAITS, argumentsOf, between, cost, duration, exact, since, tokens } from "./format.js";
import { valueView } from "./value_tree.js";

const MOST_ROWS = 300;
const ICONS = { thought: "thought", tool: "tool", step: "play", wait: "clock", model: "pulse" };

/**
 * The waterfall, or null for a run without steps. `activity` has the model calls, waits and steps of the run.
 * `waitOf(callId)` says whether a tool call waits for a person, "open", or did so, "answered"; `now` ends what is open of an active run.
 */
export function waterfall(run, activity, { waitOf, isActive, now = new Date() }) {
  const rows = rowsOf(run, activity, waitOf);
  if (!rows.length) return null;
  const start = Math.min(new Date(run.started_at ?? run.created_at), ...rows.map((row) => new Date(row.from)));
  const last = Math.max(...rows.map((row) => new Date(row.to ?? row.from)));
  const end = isActive ? Math.max(now, last) : Math.max(new Date(run.completed_at ?? last), last);
  const share = (moment) => `${Math.min(100, Math.max(0, ((new Date(moment) - start) / Math.max(1, end - start)) * 100)).toFixed(2)}%`;
  const shown = rows.slice(0, MOST_ROWS);
  return h(
    "section.block", { id: "run-waterfall" }, h("h3", {}, `Steps (${rows.length})`),
    axis(start, end),
    h("ol.waterfall", {}, shown.map((row) => rowView(row, { share, status: run.status, isActive, start, end }))),
    rows.length > shown.length && h("p.empty-line", {}, `The first ${MOST_ROWS} are shown.`),
  );
}

function rowsOf(run, { steps = [], calls = [], waits = [], nodes = [] }, waitOf) {
  const others = [
    ...run.thinking_steps.map((step) => ({ from: step.at, to: step.at, kind: "thought", name: step.thought })),
    ...run.tool_calls.map((call) => ({ from: call.at, to: call.finished_at, kind: "tool", name: call.tool_name, isError: call.is_error, wait: waitOf(String(call.id)), values: { input: argumentsOf(call.input), output: call.output } })),
    ...steps.map((step) => ({ from: step.started_at, to: step.finished_at, kind: "step", name: step.name, isError: step.status === "failed", attempt: step.attempt, values: { result: step.result, error: step.error } })),
    ...nodes.map((node) => ({ from: node.started_at, to: node.ended_at, kind: "step", name: node.name, isOuter: true })),
    ...waits.map((wait) => ({ from: wait.started_at, to: wait.ended_at, kind: "wait", name: `waits for ${WAITS[wait.kind] ?? WAITS.signal}`, values: { key: wait.key, reason: wait.reason } })),
  ];
  const began = new Date(run.started_at ?? run.created_at);
  const models = calls.map((call) => ({ from: lastEnd(others, call.ended_at, began), to: call.ended_at, kind: "model", name: call.model, note: tokens(call), cost: call.cost }));
  return [...others, ...models].sort((one, other) => new Date(one.from) - new Date(other.from));
}

/** The end of the tool, step or wait before a moment. The start of a model call is not stored: it was not earlier than this. */
function lastEnd(rows, moment, began) {
  const ended = rows.filter((row) => row.kind !== "thought" && row.to && new Date(row.to) <= new Date(moment)).map((row) => new Date(row.to));
  const begun = rows.filter((row) => row.isOuter && new Date(row.from) <= new Date(moment)).map((row) => new Date(row.from));
  return new Date(Math.min(new Date(moment), Math.max(began, ...ended, ...begun)));
}

/** The time axis: where the run starts and ends, and how long that is. */
function axis(start, end) {
  const length = end - start;
  return h(
    "div.waterfall-axis", { "aria-hidden": "true" },
    h("span", { title: exact(start) }, since(start)), h("span", {}, `+ ${duration(length / 2)}`), h("span", { title: exact(end) }, `+ ${duration(length)}`),
  );
}

/** How long a row took, or what it does. The time that a person took to answer is not the tool's. */
function timeOf({ kind, from, to, wait }, status, isActive) {
  if (kind === "thought") return "";
  // The event with the result may not be read yet.
  if (wait === "answered" || (wait && status === "completed")) return "after an answer";
  if (wait) return isActive ? "waits for a person" : "no result";
  if (kind === "model") return `≤ ${duration(between(from, to))}`;
  if (to) return duration(between(from, to));
  return !isActive ? "no result" : kind === "wait" ? "waiting" : "running";
}

function rowView(row, { share, status, isActive, start, end }) {
  const took = timeOf(row, status, isActive);
  const head = h(
    "div.waterfall-head", {}, icon(ICONS[row.kind]),
    row.kind === "thought" ? h("span.thought-text", {}, row.name) : h("code", {}, row.name),
    h("span.waterfall-time", { title: row.kind === "model" ? "Since the end of the step before; the start of a model call is not stored" : undefined }, row.isError ? `error, ${took}` : took),
  );
  const details = h(
    "div.waterfall-facts", {}, h("span", { title: exact(row.from) }, `+ ${duration(Math.max(0, new Date(row.from) - start))}`),
    row.attempt > 1 && h("span", {}, `attempt ${row.attempt}`), row.note && h("span", {}, row.note), typeof row.cost === "number" && h("span", { title: COST_UNIT }, `cost ${cost(row.cost)}`),
  );
  const until = row.to ?? (isActive ? end : row.from);
  const bar = h("div.waterfall-bar", { "data-open": String(!row.to && isActive), vars: { "--start": share(row.from), "--end": share(until) } });
  const values = Object.fromEntries(Object.entries(row.values ?? {}).filter(([, value]) => value !== null && value !== undefined));
  return h("li", { class: row.isError ? "is-error" : "", "data-kind": row.kind }, head, bar, details, Object.keys(values).length ? valueView(values, {}) : null);
}
