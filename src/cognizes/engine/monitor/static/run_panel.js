// The runs of a thread: status, duration, steps, error, what one waits for; cancel, signal, approve, deny.

import { get, post, thread } from "./api.js";
import { h, icon, replace } from "./dom.js";
import { between, clock, duration, exact, shortId, summary } from "./format.js";
import { facts } from "./event_panel.js";
import { valueView } from "./value_tree.js";

const ACTIVE = ["pending", "running", "waiting"];

export class RunPanel {
  /** `actions`: openRun(id), answer(questionId, approved), failed(error). */
  constructor(root, actions) {
    this._actions = actions;
    this._detail = h("div.run-detail");
    this._list = h("div.run-list");
    root.append(this._detail, h("h3.panel-title", {}, "Runs of this thread"), this._list);
    this.runs = [];
    this._questions = [];
    this._asked = this._shown = 0;
  }

  open(threadId) {
    this._threadId = threadId;
    this._chosen = null;
    this.runs = [];
    this._questions = [];
    this._print = null;
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
    const print = JSON.stringify([this.runs, this._questions, this._chosen]);
    if (print === this._print) return;
    this._print = print;
    const run = this.runs.find((one) => one.id === this._chosen) ?? this.runs[0];
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
        ["reason", run.wait?.reason],
        ["until", run.wait?.expires_at && exact(run.wait.expires_at)],
      ]),
      run.error && h("div.failure.is-block", {}, icon("warn"), h("pre", {}, run.error)),
      this._buttons(run, correlation),
      this._steps(run),
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
    if (run.status === "waiting") parts.push(this._signalForm(run, correlation));
    if (ACTIVE.includes(run.status)) {
      parts.push(h("div.buttons", {}, h("button.danger", { type: "button", onclick: () => this._act(run, "cancel") }, icon("stop"), "Cancel run")));
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

  async _act(run, what, body) {
    try {
      await post(thread(this._threadId, `/runs/${encodeURIComponent(run.id)}/${what}`), body);
      await this.load();
    } catch (error) {
      this._actions.failed(error);
    }
  }

  _steps(run) {
    const steps = [
      ...run.thinking_steps.map((step) => ({ at: step.at, kind: "thought", text: step.thought })),
      ...run.tool_calls.map((call) => ({ at: call.at, kind: "tool", call })),
    ].sort((one, other) => String(one.at).localeCompare(String(other.at)));
    if (!steps.length) return null;
    return h(
      "section.block", {}, h("h3", {}, `Steps (${steps.length})`),
      h("ol.steps", {}, steps.slice(0, 300).map((step) => h("li", {}, step.kind === "thought" ? [icon("thought"), h("span.thought-text", {}, step.text)] : [icon("tool"), h("code", {}, step.call.tool_name), h("span.muted", {}, step.call.is_error ? "error" : step.call.finished_at ? duration(between(step.call.at, step.call.finished_at)) : "pending"), h("span.v-preview", {}, summary(step.call.input, 60))]))),
    );
  }
}
