// The runs of a thread: status, input, result, error, a waterfall of steps, tools and waits; cancel, retry, signal, approve.

import { get, post, thread } from "./api.js";
import { h, icon, replace } from "./dom.js";
import { between, clock, cost, duration, exact, reasonOf, shortId, tokens } from "./format.js";
import { facts } from "./event_panel.js";
import { usageView } from "./user_page.js";
import { valueView } from "./value_tree.js";

const ACTIVE = ["pending", "running", "waiting"];
const MOST_ROWS = 300;

export class RunPanel {
  /** `actions`: openRun(id), answer(questionId, approved), failed(error), hasWaited(callId). */
  constructor(root, actions) {
    this._actions = actions;
    this._detail = h("div.run-detail");
    this._list = h("div.run-list");
    root.append(this._detail, h("h3.panel-title", {}, "Runs of this thread"), this._list);
    this.runs = [];
    this._questions = [];
    this._steps = new Map();
    this._asked = this._shown = 0;
  }

  open(threadId) {
    this._threadId = threadId;
    this._chosen = null;
    this.runs = [];
    this._questions = [];
    this._print = null;
    this._steps.clear();
    replace(this._list);
    replace(this._detail);
  }

  choose(runId) {
    this._chosen = runId;
    this._draw();
  }

  /** Reads the runs; returns them, or null when a later answer was faster: this one is old. */
  async load() {
    const threadId = this._threadId;
    const asked = ++this._asked;
    const { runs } = await get(`api/sessions/${threadId}/runs`, { limit: 200 });
    if (threadId !== this._threadId || asked < this._shown) return null;
    this._shown = asked;
    this.runs = runs;
    this._draw();
    return runs;
  }

  setQuestions(questions) {
    this._questions = questions;
    this._draw();
  }

  _draw() {
    // Only when something changed: a button that is replaced while it is pressed is never clicked.
    const run = this.runs.find((one) => one.id === this._chosen) ?? this.runs[0];
    if (run) this._loadSteps(run);
    const print = JSON.stringify([this.runs, this._questions, this._chosen, this._steps.get(run?.id)]);
    if (print === this._print) return;
    this._print = print;
    replace(this._detail, run ? this._detailOf(run) : h("div.empty", {}, icon("play"), h("h2", {}, "No runs yet"), h("p", {}, "A run is one execution of an agent on this thread.")));
    replace(
      this._list,
      this.runs.map((one) =>
        h(
          "button.run-row", { type: "button", "data-status": one.status, "aria-current": String(one === run), onclick: () => this._actions.openRun(one.id) },
          h("span.dot"), h("code", {}, shortId(one.id)), h("span.run-status", {}, one.status), h("span.muted", {}, duration(between(one.started_at, one.completed_at))), h("time", {}, clock(one.created_at)),
        ),
      ),
    );
  }

  /** Reads the durable steps, model calls and waits of a run; again when the run has changed. */
  async _loadSteps(run) {
    const state = `${run.status} ${run.attempt} ${run.tool_calls.length}`;
    if (this._steps.get(run.id)?.state === state) return;
    this._steps.set(run.id, { state, steps: this._steps.get(run.id)?.steps ?? [] });
    try {
      const path = `api/sessions/${this._threadId}/runs/${encodeURIComponent(run.id)}`;
      const activity = thread(this._threadId, `/runs/${encodeURIComponent(run.id)}/activity`);
      const [{ steps }, usage, { model_calls: calls, waits, trace }] = await Promise.all([get(path), get(`${path}/usage`), get(activity)]);
      this._steps.set(run.id, { state, steps, usage, calls, waits, trace });
      this._draw();
    } catch (error) {
      this._steps.delete(run.id);
      this._actions.failed(error);
    }
  }

  _detailOf(run) {
    const correlation = run.wait?.correlation_key ?? null;
    return [
      h("header.event-head", {}, h("div", {}, h("h2", {}, "Run"), h("code.kind", {}, run.id)), h("span.pill", { "data-status": run.status }, run.status)),
      facts([
        ["started", run.started_at && exact(run.started_at)],
        ["ended", run.completed_at && exact(run.completed_at)],
        ["duration", run.started_at && duration(between(run.started_at, run.completed_at ?? new Date()))],
        ["attempt", run.attempt ? String(run.attempt) : null],
        ["handler", run.handler],
        ["worker", run.worker_id],
        ["waits for", run.wait?.kind],
        ["key", correlation && h("code", { id: "wait-key" }, correlation)],
        ["reason", reasonOf(run.wait?.reason)],
        ["until", run.wait?.expires_at && exact(run.wait.expires_at)],
        ["trace", this._traceOf(run)],
      ]),
      run.error && h("div.failure.is-block", {}, icon("warn"), h("pre", {}, run.error)),
      this._buttons(run, correlation),
      run.input !== null && run.input !== undefined && h("section.block", { id: "run-input" }, h("h3", {}, "Input"), valueView(run.input, { open: 1 })),
      run.result !== null && run.result !== undefined && h("section.block", { id: "run-result" }, h("h3", {}, "Result"), valueView(run.result, { open: 1 })),
      this._usageOf(run),
      this._waterfall(run),
    ];
  }

  _buttons(run, correlation) {
    const parts = [];
    for (const question of run === this.runs[0] ? this._questions : []) {
      parts.push(
        h(
          "div.question.is-open", { "data-question": question.id },
          h("div.question-head", {}, icon("person"), question.metadata?.toolName ? [h("strong", {}, "Approval asked for "), h("code", {}, question.metadata.toolName)] : h("span", {}, question.message ?? question.reason)),
          question.metadata?.arguments && valueView(question.metadata.arguments, { open: 1 }),
          h("div.buttons", {}, h("button.primary", { type: "button", onclick: () => this._actions.answer(question.id, true) }, "Approve"), h("button", { type: "button", onclick: () => this._actions.answer(question.id, false) }, "Deny")),
        ),
      );
    }
    if (run.status === "waiting" && !parts.length) parts.push(this._signalForm(run, correlation));
    if (ACTIVE.includes(run.status)) {
      parts.push(h("div.buttons", {}, h("button.danger", { type: "button", onclick: () => this._act(run, "cancel") }, icon("stop"), "Cancel run")));
    }
    if (run.status === "failed" && run.handler && !run.handler.startsWith("agui/")) {
      parts.push(h("div.buttons", {}, h("button", { type: "button", id: "retry-run", onclick: () => this._retry(run) }, icon("play"), "Retry")));
    }
    return parts.length ? h("div.run-actions", {}, parts) : null;
  }

  _signalForm(run, correlation) {
    const key = h("input", { type: "text", value: correlation ?? "", placeholder: "correlation key", "aria-label": "Correlation key", id: "signal-key" });
    const payload = h("textarea", { rows: "3", placeholder: '{"approved": true}', "aria-label": "Payload as JSON", id: "signal-payload", spellcheck: "false" });
    const send = h("button.primary", { type: "submit" }, icon("send"), "Send signal");
    const form = h("form.signal", {}, h("div.label", {}, "Waiting for a signal"), key, payload, h("div.buttons", {}, send));
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      let body = null;
      try {
        body = payload.value.trim() ? JSON.parse(payload.value) : null;
      } catch (error) {
        return this._actions.failed(new Error(`The payload is not JSON: ${error.message}`));
      }
      await this._act(run, "signal", { correlation_key: key.value, payload: body });
    });
    return form;
  }

  async _retry(run) {
    try {
      await post(`api/sessions/${this._threadId}/runs/${encodeURIComponent(run.id)}/retry`);
      await this.load();
    } catch (error) {
      this._actions.failed(error);
    }
  }

  async _act(run, what, body) {
    try {
      await post(thread(this._threadId, `/runs/${encodeURIComponent(run.id)}/${what}`), body);
      await this.load();
    } catch (error) {
      this._actions.failed(error);
    }
  }

  _traceOf(run) {
    const trace = this._steps.get(run.id)?.trace;
    if (!trace?.url) return trace && h("code", {}, trace.id);
    return h("a", { href: trace.url, target: "_blank", rel: "noopener noreferrer" }, h("code", {}, trace.id));
  }

  _usageOf(run) {
    const usage = this._steps.get(run.id)?.usage;
    return usage?.calls ? h("section.block", { id: "run-usage" }, h("h3", {}, "Tokens and cost"), usageView(usage)) : null;
  }

  /** Model calls, tools, steps, waits and thoughts in the order of their start, each with its share of the run's time. */
  _waterfall(run) {
    const { steps = [], calls = [], waits = [] } = this._steps.get(run.id) ?? {};
    const others = [
      ...run.thinking_steps.map((step) => ({ from: step.at, to: step.at, kind: "thought", name: step.thought })),
      ...run.tool_calls.map((call) => ({ from: call.at, to: call.finished_at, kind: "tool", name: call.tool_name, isError: call.is_error, hasWaited: this._actions.hasWaited(String(call.id)), values: { input: call.input, output: call.output } })),
      ...steps.map((step) => ({ from: step.started_at, to: step.finished_at, kind: "step", name: step.name, isError: step.status === "failed", attempt: step.attempt, values: { result: step.result, error: step.error } })),
      ...waits.map((wait) => ({ from: wait.started_at, to: wait.ended_at, kind: "wait", name: `waits for ${wait.kind ?? "a signal"}`, values: { key: wait.key, reason: wait.reason } })),
    ];
    const began = new Date(run.started_at ?? run.created_at);
    const models = calls.map((call) => ({ from: lastEnd(others, call.ended_at, began), to: call.ended_at, kind: "model", name: call.model, note: tokens(call), cost: call.cost }));
    const rows = [...others, ...models].sort((one, other) => new Date(one.from) - new Date(other.from));
    if (!rows.length) return null;
    const start = Math.min(began, new Date(rows[0].from));
    const end = new Date(run.completed_at ?? Math.max(...rows.map((row) => new Date(row.to ?? row.from))));
    const share = (moment) => `${Math.min(100, Math.max(0, ((new Date(moment) - start) / Math.max(1, end - start)) * 100)).toFixed(2)}%`;
    return h("section.block", { id: "run-waterfall" }, h("h3", {}, `Steps (${rows.length})`), h("ol.waterfall", {}, rows.slice(0, MOST_ROWS).map((row) => waterfallRow(row, share, ACTIVE.includes(run.status)))));
  }
}

/** The end of the tool, step or wait before a moment. The start of a model call is not stored: it was not earlier than this. */
function lastEnd(rows, moment, began) {
  const ends = rows.filter((row) => row.kind !== "thought" && row.to && new Date(row.to) <= new Date(moment)).map((row) => new Date(row.to));
  return new Date(Math.min(new Date(moment), Math.max(began, ...ends)));
}

const ICONS = { thought: "thought", tool: "tool", step: "play", wait: "clock", model: "pulse" };

function waterfallRow(row, share, isActive) {
  const length = row.to && duration(between(row.from, row.to));
  const took = row.kind === "thought" ? "" : row.hasWaited ? "after an answer" : row.kind === "model" ? `≤ ${length}` : length || (isActive ? "running" : "no result");
  const head = h(
    "div.waterfall-head", {}, icon(ICONS[row.kind]),
    row.kind === "thought" ? h("span.thought-text", {}, row.name) : h("code", {}, row.name),
    row.attempt > 1 && h("span.muted", {}, `attempt ${row.attempt}`), row.note && h("span.muted", {}, row.note), typeof row.cost === "number" && h("span.muted", {}, cost(row.cost)),
    h("span.waterfall-time", { title: row.kind === "model" ? "Since the end of the step before; the start of a model call is not stored" : undefined }, row.isError ? `error, ${took}` : took),
  );
  const bar = h("div.waterfall-bar", { vars: { "--start": share(row.from), "--end": share(row.to ?? row.from) } });
  const values = Object.fromEntries(Object.entries(row.values ?? {}).filter(([, value]) => value !== null && value !== undefined));
  return h("li", { class: row.isError ? "is-error" : "", "data-kind": row.kind }, head, bar, Object.keys(values).length ? valueView(values, {}) : null);
}
