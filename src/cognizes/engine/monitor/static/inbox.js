// Needs you: the runs of all threads that wait for a person or a signal, with the answer in place.

import { get, post, thread } from "./api.js";
import { h, icon, replace } from "./dom.js";
import { ago, exact, reasonOf, titleOf } from "./format.js";
import { valueView } from "./value_tree.js";

const REFRESH_MS = 400;
const MOST = 100;
const ASKED = { human: "a person", webhook: "a webhook", signal: "a signal", message: "a message of the user" };

export class Inbox {
  /** `actions`: open(threadId, runId), failed(error), query() the app and the user that the caller may see. */
  constructor(button, panel, actions) {
    this._button = button;
    this._panel = panel;
    this._actions = actions;
    this._count = h("span.inbox-count");
    this._waiting = [];
    replace(button, icon("person"), h("span", {}, "Needs you"), this._count);
    button.addEventListener("click", () => this._toggle());
    this._show();
  }

  close() {
    this._panel.hidden = true;
    this._button.setAttribute("aria-expanded", "false");
  }

  /** An event was stored: a run may wait now, or no longer. */
  onEvent(type) {
    if (/^(run_|decision_|monitor_action)/.test(type ?? "")) this._soon();
  }

  async load() {
    try {
      const { runs } = await get("api/runs", { ...this._actions.query(), status: "waiting", limit: MOST });
      this._waiting = runs.filter((run) => run.wait && run.wait.kind in ASKED);
      this._button.hidden = false;
    } catch (error) {
      // A key that may not list runs has no inbox.
      this._button.hidden = error.status === 403;
      return;
    }
    this._show();
    if (!this._panel.hidden) await this._draw();
  }

  _soon() {
    this._timer ??= setTimeout(() => ((this._timer = null), this.load()), REFRESH_MS);
  }

  _show() {
    const count = this._waiting.length;
    this._count.textContent = count ? (count === MOST ? `${MOST}+` : String(count)) : "";
    this._button.dataset.waiting = String(count > 0);
    this._button.setAttribute("aria-label", count ? `Needs you: ${count}` : "Needs you: nothing");
  }

  async _toggle() {
    this._panel.hidden = !this._panel.hidden;
    this._button.setAttribute("aria-expanded", String(!this._panel.hidden));
    if (!this._panel.hidden) await this._draw();
  }

  async _draw() {
    const waiting = this._waiting;
    const ids = [...new Set(waiting.map((run) => run.thread_id))];
    const [summaries, questions] = await Promise.all([
      ids.length ? get("api/debug/threads", { ...this._actions.query(), ids: ids.join(",") }).then(({ threads }) => new Map(threads.map((one) => [one.thread_id, one])), () => new Map()) : new Map(),
      Promise.all(ids.map((id) => get(thread(id, "/questions")).then((answer) => [id, answer.questions], () => [id, []]))).then((found) => new Map(found)),
    ]);
    if (waiting !== this._waiting) return;
    replace(
      this._panel,
      h("h2.panel-title", {}, "Needs you"),
      waiting.length
        ? h("ul.inbox", {}, waiting.map((run) => this._card(run, summaries.get(run.thread_id), questions.get(run.thread_id))))
        : h("p.empty-line", {}, "No run waits for a person or a signal."),
    );
  }

  _card(run, summary, questions) {
    const asked = run.wait.kind === "human" ? questions : [];
    return h(
      "li.inbox-card", { "data-run": run.id },
      h(
        "div.inbox-head", {},
        h("button.link.inbox-thread", { type: "button", onclick: () => this._open(run) }, summary ? titleOf(summary) : run.thread_id),
        summary && h("time", { title: exact(summary.updated_at) }, `since ${ago(summary.updated_at)}`),
      ),
      h("div.inbox-facts", {}, h("span.tag", {}, run.app_name), summary && h("span.tag", {}, icon("person"), summary.user_id), h("span.muted", {}, `${run.handler?.replace(/^agui\//, "") ?? "A run"} waits for ${ASKED[run.wait.kind]}`)),
      reasonOf(run.wait.reason) && h("p", {}, run.wait.reason),
      asked.length ? this._questions(run, asked) : this._signal(run),
    );
  }

  /** Questions of a hosted agent are answered together; an approval of a tool is answered alone. */
  _questions(run, questions) {
    const decisions = new Map();
    const together = questions.filter((question) => question.kind !== "approval");
    return questions.map((question) => {
      const buttons = h("div.buttons");
      const answer = (approved) => async () => {
        decisions.set(question.id, approved);
        replace(buttons, h("span.muted", {}, approved ? "Approved" : "Denied"));
        const isAlone = question.kind === "approval";
        if (!isAlone && together.some((one) => !decisions.has(one.id))) return;
        const path = isAlone ? `/approvals/${encodeURIComponent(question.id)}` : "/answers";
        const body = isAlone ? { approved } : { answers: Object.fromEntries(together.map((one) => [one.id, decisions.get(one.id)])) };
        await this._send(thread(run.thread_id, path), body);
      };
      replace(buttons, h("button.primary", { type: "button", onclick: answer(true) }, "Approve"), h("button", { type: "button", onclick: answer(false) }, "Deny"));
      const { toolName, arguments: values } = question.metadata ?? {};
      return h(
        "div.question.is-open", { "data-question": question.id },
        h("div.question-head", {}, icon("person"), toolName ? [h("strong", {}, "May it call "), h("code", {}, toolName), "?"] : h("span", {}, question.message ?? question.reason)),
        values && valueView(values, { open: 1 }), buttons,
      );
    });
  }

  _signal(run) {
    const payload = h("textarea", { rows: "2", placeholder: '{"approved": true}', "aria-label": `Payload for ${run.wait.correlation_key} as JSON`, spellcheck: "false" });
    const form = h("form.signal", {}, h("div.label", {}, "Signal ", h("code", {}, run.wait.correlation_key)), payload, h("div.buttons", {}, h("button.primary", { type: "submit" }, icon("send"), "Send signal")));
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      let body = null;
      try {
        body = payload.value.trim() ? JSON.parse(payload.value) : null;
      } catch (error) {
        return this._actions.failed(new Error(`The payload is not JSON: ${error.message}`));
      }
      await this._send(thread(run.thread_id, `/runs/${encodeURIComponent(run.id)}/signal`), { correlation_key: run.wait.correlation_key, payload: body });
    });
    return form;
  }

  async _send(path, body) {
    try {
      await post(path, body);
    } catch (error) {
      this._actions.failed(error);
    }
    await this.load();
  }

  _open(run) {
    this.close();
    this._actions.open(run.thread_id, run.id);
  }
}
