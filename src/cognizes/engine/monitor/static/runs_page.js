// The runs of all threads: status, agent or handler, duration, attempts, tokens, cost, error; filters, live, pages. Below:
// schedules.

import { get } from "./api.js";
import { h, icon, replace } from "./dom.js";
import { ago, between, cost, duration, exact, number, shortId, tokens } from "./format.js";
import { Schedules } from "./schedules.js";

const PAGE = 100;
const TYPING_MS = 200;
const REFRESH_MS = 500;
const STATUSES = ["running", "waiting", "pending", "failed", "completed", "cancelled"];

export class RunsPage {
  /** `actions`: open(threadId, runId), failed(error), query() the app and the user that the caller may see. */
  constructor(root, actions) {
    this._root = root;
    this._actions = actions;
    this._schedules = new Schedules(actions);
    this._status = h("select", { id: "runs-status", "aria-label": "Status" }, h("option", { value: "" }, "Any status"), STATUSES.map((name) => h("option", { value: name }, name)));
    this._app = h("input", { type: "text", id: "runs-app", placeholder: "Any app", "aria-label": "App", autocomplete: "off", spellcheck: "false" });
    this._handler = h("input", { type: "text", id: "runs-handler", placeholder: "Any agent or handler", "aria-label": "Agent or handler", autocomplete: "off", spellcheck: "false" });
    this._rows = h("tbody");
    this._more = h("button.more-runs", { type: "button", hidden: true, onclick: () => this._load(this._cursor) }, "Older runs");
    this._empty = h("p.empty-line", { hidden: true });
    this._status.addEventListener("change", () => this.load());
    for (const input of [this._app, this._handler]) input.addEventListener("input", () => this._after(TYPING_MS));
    const names = ["Status", "Agent or handler", "Run", "App", "Started", "Duration", "Attempts", "Tokens", "Cost", "Error"];
    this._view = h(
      "div.runs-page", {},
      h("div.runs-head", {}, h("h1", {}, "Runs"), h("div.runs-filters", {}, this._status, this._app, this._handler)),
      h("div.runs-table", { tabindex: "0", role: "region", "aria-label": "Runs of all threads" }, h("table", {}, h("thead", {}, h("tr", {}, names.map((name) => h("th", { scope: "col" }, name)))), this._rows)),
      this._empty, this._more, this._schedules.element,
    );
  }

  get isOpen() {
    return this._view.isConnected;
  }

  open() {
    replace(this._root, this._view);
    this._schedules.load();
    return this.load();
  }

  /** An event was stored: a run may have changed. */
  onEvent(type) {
    if (this.isOpen && /^run_/.test(type ?? "")) this._after(REFRESH_MS);
  }

  /** Reads the page again if it is shown. */
  refresh() {
    if (this.isOpen) this._after(0);
  }

  load() {
    return this._load(null);
  }

  _after(ms) {
    this._timer ??= setTimeout(() => ((this._timer = null), this.load()), ms);
  }

  async _load(cursor) {
    const turn = (this._turn = (this._turn ?? 0) + 1);
    const allowed = this._actions.query();
    const query = { ...allowed, status: this._status.value, app_name: allowed.app_name ?? this._app.value.trim(), handler: this._handler.value.trim(), with_usage: true, limit: PAGE, cursor };
    try {
      const { runs, next_cursor: next } = await get("api/runs", query);
      if (turn !== this._turn) return;
      const rows = runs.map((run) => this._row(run));
      if (cursor) this._rows.append(...rows);
      else replace(this._rows, rows);
      this._cursor = next;
      this._more.hidden = !next;
      this._empty.hidden = this._rows.children.length > 0;
      this._empty.textContent = "No run matches.";
    } catch (error) {
      if (turn !== this._turn) return;
      this._empty.hidden = false;
      this._empty.textContent = error.message;
    }
  }

  _row(run) {
    const open = h("button.link", { type: "button", title: run.id, onclick: () => this._actions.open(run.thread_id, run.id) }, h("code", {}, shortId(run.id)));
    const started = run.started_at ?? run.created_at;
    return h(
      "tr", { "data-run": run.id, "data-status": run.status },
      h("td", {}, h("span.pill", { "data-status": run.status }, run.status)),
      h("td", {}, run.handler?.startsWith("agui/") ? [icon("person"), " ", run.handler.slice(5)] : run.handler ?? h("span.muted", {}, "–")),
      h("td", {}, open), h("td", {}, run.app_name), h("td", {}, h("time", { title: exact(started) }, ago(started))),
      h("td.figure", {}, run.started_at ? duration(between(run.started_at, run.completed_at ?? new Date())) : "–"),
      h("td.figure", {}, String(run.attempt)), h("td.figure", { "data-figure": "tokens", title: run.usage.calls ? tokens(run.usage) : undefined }, run.usage.calls ? number(run.usage.input_tokens + run.usage.output_tokens) : "–"),
      h("td.figure", { "data-figure": "cost" }, run.usage.cost === null ? "–" : cost(run.usage.cost)), h("td.runs-error", { title: run.error }, run.error ?? ""),
    );
  }
}
