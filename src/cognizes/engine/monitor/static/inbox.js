// Needs you: the runs of all threads that wait for a person or a signal, with the answer in place.

import { questionOf } from "./answers.js";
import { get, post, thread } from "./api.js";
import { arrange, h, icon, replace } from "./dom.js";
import { exact, reasonOf, since, titleOf } from "./format.js";
import { QuestionCard } from "./question_card.js";
import { signalForm } from "./signal_form.js";

const REFRESH_MS = 400;
const MOST = 100;
const ASKED = { human: "asks a person", webhook: "waits for a webhook", signal: "waits for a signal", message: "waits for a message of the user" };

export class Inbox {
  /**
   * `actions`: open(threadId, runId), failed(error), query() the app and the user that the caller may see, answers the
   * shared `Answers`, may(permission).
   */
  constructor(button, panel, actions) {
    this._button = button;
    this._panel = panel;
    this._actions = actions;
    this._count = h("span.inbox-count");
    this._list = h("ul.inbox");
    this._empty = h("p.empty-line", {}, "No run waits for a person or a signal.");
    this._waiting = [];
    this._hasMore = false;
    this._cards = new Map();
    replace(button, icon("person"), h("span.inbox-label", {}, "Needs you"), this._count);
    const close = h("button.icon-button", { type: "button", "aria-label": "Close", onclick: () => this.close() }, icon("close"));
    replace(panel, h("div.inbox-title", {}, h("h2", {}, "Needs you"), close), this._list, this._empty);
    button.addEventListener("click", () => this._toggle());
    document.addEventListener("pointerdown", ({ target }) => !panel.hidden && !panel.contains(target) && !button.contains(target) && this.close());
    this._show();
  }

  /** Closes the panel. The focus goes back to the button if it was in the panel. */
  close() {
    if (this._panel.contains(document.activeElement)) this._button.focus();
    this._panel.hidden = true;
    this._button.setAttribute("aria-expanded", "false");
  }

  /** An event was stored: a run may wait now, or no longer, or ask something else. */
  onEvent(type, threadId) {
    if (!/^(run_|decision_|monitor_action)/.test(type ?? "")) return;
    for (const card of this._cards.values()) if (card.run.thread_id === threadId) card.isStale = true;
    this._timer ??= setTimeout(() => ((this._timer = null), this.load()), REFRESH_MS);
  }

  async load() {
    const turn = (this._turn = (this._turn ?? 0) + 1);
    let page;
    try {
      page = await get("api/debug/runs", { ...this._actions.query(), status: "waiting", wait_kind: Object.keys(ASKED), limit: MOST });
    } catch (error) {
      // A key that may not list runs has no inbox. Otherwise the next event or connection loads it again.
      if (turn === this._turn) this._button.hidden = error.status === 403;
      return;
    }
    if (turn !== this._turn) return;
    this._button.hidden = false;
    this._waiting = page.runs;
    this._hasMore = page.next_cursor !== null;
    this._show();
    if (!this._panel.hidden) this._draw();
  }

  _show() {
    const count = this._waiting.length;
    this._count.textContent = count ? (this._hasMore ? `${count}+` : String(count)) : "";
    this._button.dataset.waiting = String(count > 0);
    this._button.setAttribute("aria-label", count ? `Needs you: ${this._count.textContent}` : "Needs you: nothing");
  }

  _toggle() {
    this._panel.hidden = !this._panel.hidden;
    this._button.setAttribute("aria-expanded", String(!this._panel.hidden));
    if (this._panel.hidden) return;
    this._draw();
    this._panel.focus();
  }

  /** Cards of waits that are still there stay as they are: with what is typed into them, and with the focus. */
  _draw() {
    const cards = new Map();
    for (const run of this._waiting) {
      const key = `${run.thread_id}/${run.id}/${run.wait.since}/${run.wait.correlation_key}`;
      cards.set(key, this._cards.get(key) ?? new WaitCard(run, { ...this._actions, open: () => this._open(run), reload: () => this.load() }));
    }
    this._cards = cards;
    arrange(this._list, [...cards.values()].map((card) => card.element));
    this._empty.hidden = cards.size > 0;
    for (const card of cards.values()) card.refresh();
  }

  _open(run) {
    this.close();
    this._actions.open(run.thread_id, run.id);
  }
}

/** A waiting run: whose it is, since when it waits, and what answers it. */
class WaitCard {
  constructor(run, actions) {
    this.run = run;
    this.isStale = true;
    this._actions = actions;
    this._since = h("time", { title: exact(run.wait.since) }, run.wait.since && `since ${since(run.wait.since)}`);
    this._reason = h("p", { hidden: !reasonOf(run.wait.reason) }, run.wait.reason);
    this._body = h("div.inbox-body");
    this._questions = new Map();
    const agent = run.handler?.replace(/^agui\//, "") ?? "A run";
    this.element = h(
      "li.inbox-card", { "data-run": run.id },
      h("div.inbox-head", {}, h("button.link.inbox-thread", { type: "button", onclick: actions.open }, titleOf(run)), this._since),
      h("div.inbox-facts", {}, h("span.tag", {}, run.app_name), h("span.tag", {}, icon("person"), run.user_id), h("span.muted", {}, `${agent} ${ASKED[run.wait.kind]}`)),
      this._reason, this._body,
    );
  }

  async refresh() {
    if (!this.isStale) return;
    this.isStale = false;
    const { run } = this;
    let questions = [];
    if (run.wait.kind === "human") {
      try {
        questions = (await get(thread(run.thread_id, "/questions"))).questions.map(questionOf);
      } catch (error) {
        this.isStale = true;
        replace(this._body, h("p.empty-line.is-error", {}, error.message));
        return;
      }
    }
    this._actions.answers.keepOnly(run.thread_id, questions);
    this._show(questions);
  }

  _show(questions) {
    const give = (question, payload) => this._actions.answers.give(this.run.thread_id, question, payload, questions);
    const withdraw = (question) => this._actions.answers.withdraw(this.run.thread_id, question.id);
    const open = new Set(questions.map((question) => question.id));
    for (const id of this._questions.keys()) if (!open.has(id)) this._questions.delete(id);
    for (const question of questions) {
      if (this._questions.has(question.id)) continue;
      const card = new QuestionCard(question, { give, withdraw, may: this._actions.may });
      card.setOpen(true);
      this._questions.set(question.id, card);
    }
    // The questions of an agent are its reason to wait.
    if (questions.some((question) => question.kind !== "approval")) this._reason.hidden = true;
    if (questions.length) return arrange(this._body, [...this._questions.values()].map((card) => card.element));
    if (!this._actions.may("admin")) return replace(this._body, h("p.empty-line", {}, "A signal needs a key with the permission admin."));
    this._form ??= signalForm({ key: this.run.wait.correlation_key, send: (body) => this._signal(body), failed: this._actions.failed });
    arrange(this._body, [this._form]);
  }

  async _signal(body) {
    try {
      await post(thread(this.run.thread_id, `/runs/${encodeURIComponent(this.run.id)}/signal`), body);
    } catch (error) {
      this._actions.failed(error);
    }
    await this._actions.reload();
  }
}
