// The runs of a thread: status, input, result, error, waterfall; questions, signal, cancel and retry.

import { questionOf } from "./answers.js";
import { get, post, thread } from "./api.js";
import { h, icon, replace } from "./dom.js";
import { facts } from "./event_panel.js";
import { WAITS, between, duration, exact, growing, reasonOf, shortId, since } from "./format.js";
import { QuestionCard } from "./question_card.js";
import { signalForm } from "./signal_form.js";
import { usageView } from "./user_page.js";
import { valueView } from "./value_tree.js";
import { waterfall } from "./waterfall.js";

const ACTIVE = ["pending", "running", "waiting"];
const POLL_MS = 2000;
const HOSTED = "agui/";

export class RunPanel {
  /** `actions`: openRun(id), give(question, payload), withdraw(question), failed(error), waitOf(callId), may(permission). */
  constructor(root, actions) {
    this._root = root;
    this._actions = actions;
    this._head = h("div");
    this._box = h("div.run-actions", { hidden: true });
    this._body = h("div");
    this._list = h("div.run-list");
    root.append(h("div.run-detail", {}, this._head, this._box, this._body), h("h3.panel-title", {}, "Runs of this thread"), this._list);
    this._cards = new Map();
    this._activities = new Map();
    this._asked = this._shown = 0;
    this.open(null);
  }

  open(threadId) {
    clearTimeout(this._poll);
    this._threadId = threadId;
    this._chosen = this._other = this._print = this._boxPrint = null;
    this.runs = [];
    this._questions = [];
    this._cards.clear();
    this._activities.clear();
    for (const part of [this._list, this._head, this._box, this._body]) replace(part);
    this._box.hidden = true;
  }

  choose(runId) {
    if (this._chosen !== runId) this._root.scrollTop = 0;
    this._chosen = runId;
    this._draw();
    this._loadOther();
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
    this._loadOther();
    return runs;
  }

  /** Reads the chosen run if it is not among the newest ones. `_other.run` is null if the thread has no such run. */
  async _loadOther() {
    const [threadId, id] = [this._threadId, this._chosen];
    if (!id || this.runs.some((run) => run.id === id)) return;
    let run = null;
    try {
      run = await get(`api/runs/${encodeURIComponent(id)}`, { thread_id: threadId });
    } catch (error) {
      if (!error.isMissing) return this._actions.failed(error);
    }
    if (threadId !== this._threadId || id !== this._chosen) return;
    this._other = { id, run };
    this._draw();
  }

  /** The chosen run, else the newest; null if it is not read yet or does not exist. */
  get _shownRun() {
    if (!this._chosen) return this.runs[0] ?? null;
    return this.runs.find((one) => one.id === this._chosen) ?? (this._other?.id === this._chosen ? this._other.run : null);
  }

  setQuestions(questions) {
    this._questions = questions.map(questionOf);
    const open = new Set(questions.map((question) => question.id));
    for (const id of this._cards.keys()) if (!open.has(id)) this._cards.delete(id);
    this._draw();
  }

  _draw() {
    // Only when something changed: a button that is replaced while it is pressed is never clicked.
    const run = this._shownRun;
    if (run) this._loadActivity(run);
    const print = JSON.stringify([this.runs, this._chosen, this._other, this._activities.get(run?.id)]);
    this._drawBox(run);
    if (print === this._print) return;
    this._print = print;
    replace(this._head, run ? this._headOf(run) : this._noRun());
    replace(this._body, run && this._bodyOf(run));
    replace(
      this._list,
      this.runs.map((one) =>
        h(
          "button.run-row", { type: "button", "data-status": one.status, "aria-current": String(one === run), onclick: () => this._actions.openRun(one.id) },
          h("span.dot"), h("code", {}, shortId(one.id)), h("span.run-status", {}, one.status), h("span.muted", {}, tookView(one)), h("time", { title: exact(one.created_at) }, since(one.created_at)),
        ),
      ),
    );
  }

  /** Reads the steps, model calls and waits of a run; again when the run has changed, and from time to time while it runs. */
  async _loadActivity(run, { isPoll = false } = {}) {
    const state = `${run.status} ${run.attempt} ${run.tool_calls.length} ${run.thinking_steps.length}`;
    if (!isPoll && this._activities.get(run.id)?.state === state) return;
    const threadId = this._threadId;
    this._activities.set(run.id, { ...this._activities.get(run.id), state });
    clearTimeout(this._poll);
    try {
      const path = `api/runs/${encodeURIComponent(run.id)}`;
      const activity = thread(threadId, `/runs/${encodeURIComponent(run.id)}/activity`);
      const [{ steps }, usage, { model_calls: calls, waits, nodes, trace }] = await Promise.all([get(path, { thread_id: threadId }), get(`${path}/usage`, { thread_id: threadId }), get(activity)]);
      if (threadId !== this._threadId) return;
      this._activities.set(run.id, { state, steps, usage, calls, waits, nodes, trace });
      this._draw();
    } catch (error) {
      if (threadId !== this._threadId) return;
      this._activities.delete(run.id);
      if (!isPoll) this._actions.failed(error);
    }
    if (run.status === "running") this._poll = setTimeout(() => this._pollActivity(threadId, run.id), POLL_MS);
  }

  /** A worker stores steps without events: they are read while the run is shown and runs. */
  _pollActivity(threadId, runId) {
    const shown = this._shownRun;
    if (threadId !== this._threadId || shown?.id !== runId || shown.status !== "running") return;
    if (this._root.hidden || document.hidden) this._poll = setTimeout(() => this._pollActivity(threadId, runId), POLL_MS);
    else this._loadActivity(shown, { isPoll: true });
  }

  _noRun() {
    if (!this._chosen) return h("div.empty", {}, icon("play"), h("h2", {}, "No runs yet"), h("p", {}, "A run is one execution of an agent on this thread."));
    if (this._other?.id !== this._chosen) return h("p.empty-line", {}, "Reading…");
    return h("div.empty", {}, icon("warn"), h("h2", {}, "Run not found"), h("p", {}, "This thread has no run ", h("code", {}, this._chosen), "."));
  }

  _headOf(run) {
    const correlation = run.wait?.correlation_key ?? null;
    return [
      h("header.event-head", {}, h("div", {}, h("h2", {}, "Run"), h("code.kind", {}, run.id)), h("span.pill", { "data-status": run.status }, run.status)),
      facts([
        ["started", run.started_at && exact(run.started_at)],
        ["ended", run.completed_at && exact(run.completed_at)],
        ["duration", run.started_at && tookView(run)],
        ["attempt", run.attempt ? String(run.attempt) : null],
        ["handler", run.handler],
        ["worker", run.worker_id],
        ["waits for", run.wait && (WAITS[run.wait.kind] ?? WAITS.signal)],
        ["key", correlation && h("code", { id: "wait-key" }, correlation)],
        ["reason", reasonOf(run.wait?.reason)],
        ["until", run.wait?.expires_at && exact(run.wait.expires_at)],
        ["trace", this._traceOf(run)],
      ]),
      run.error && h("div.failure.is-block", {}, icon("warn"), h("pre", {}, run.error)),
    ];
  }

  _bodyOf(run) {
    const activity = this._activities.get(run.id) ?? {};
    return [
      run.input !== null && run.input !== undefined && h("section.block", { id: "run-input" }, h("h3", {}, "Input"), valueView(run.input, { open: run.handler?.startsWith(HOSTED) ? 0 : 1 })),
      run.result !== null && run.result !== undefined && h("section.block", { id: "run-result" }, h("h3", {}, "Result"), valueView(run.result, { open: 1 })),
      activity.usage?.calls ? h("section.block", { id: "run-usage" }, h("h3", {}, "Tokens and cost"), usageView(activity.usage)) : null,
      waterfall(run, activity, { waitOf: this._actions.waitOf, isActive: ACTIVE.includes(run.status) }),
    ];
  }

  /** What a person can do with the run. Drawn only when that changes, so that what is typed stays. */
  _drawBox(run) {
    if (!run) {
      this._boxPrint = null;
      this._box.hidden = true;
      return replace(this._box);
    }
    const questions = run === this.runs[0] ? this._questions : [];
    const correlation = run.wait?.correlation_key ?? null;
    const print = JSON.stringify([run.id, run.status, run.handler, correlation, questions.map((question) => question.id), this._actions.may("admin"), this._actions.may("write")]);
    if (print === this._boxPrint) return;
    this._boxPrint = print;
    const mayAct = this._actions.may("admin");
    const parts = questions.map((question) => this._card(question).element);
    if (mayAct && run.status === "waiting" && !parts.length) parts.push(signalForm({ key: correlation, send: (body) => this._act(run, "signal", body), failed: this._actions.failed }));
    const buttons = [];
    if (mayAct && ACTIVE.includes(run.status)) buttons.push(h("button.danger", { type: "button", onclick: () => this._act(run, "cancel") }, icon("stop"), "Cancel run"));
    if (this._actions.may("write") && run.status === "failed" && run.handler && !run.handler.startsWith(HOSTED)) buttons.push(h("button", { type: "button", id: "retry-run", onclick: () => this._retry(run) }, icon("play"), "Retry"));
    if (buttons.length) parts.push(h("div.buttons", {}, buttons));
    replace(this._box, parts);
    this._box.hidden = !parts.length;
  }

  _card(question) {
    if (!this._cards.has(question.id)) {
      const card = new QuestionCard(question, this._actions);
      card.setOpen(true);
      this._cards.set(question.id, card);
    }
    return this._cards.get(question.id);
  }

  async _retry(run) {
    try {
      await post(`api/runs/${encodeURIComponent(run.id)}/retry`, undefined, { query: { thread_id: this._threadId } });
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
    const trace = this._activities.get(run.id)?.trace;
    if (!trace?.url) return trace && h("code", {}, trace.id);
    return h("a", { href: trace.url, target: "_blank", rel: "noopener noreferrer" }, h("code", {}, trace.id));
  }
}

/** How long a run took; of an active run, how long it has taken so far. */
export function tookView(run) {
  const isOver = run.completed_at || !ACTIVE.includes(run.status);
  return h("span", isOver ? {} : growing(run.started_at), run.started_at ? duration(between(run.started_at, run.completed_at ?? new Date())) : "–");
}
