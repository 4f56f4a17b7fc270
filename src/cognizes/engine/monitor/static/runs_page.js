// The runs of all threads: status, agent or handler, user, times, attempts, tokens, cost, error; filters, live, pages.
// Below: schedules.

import { get } from "./api.js";
import { arrange, h, icon, replace } from "./dom.js";
import { COST_UNIT, cost, exact, number, shortId, since, titleOf, tokens } from "./format.js";
import { format } from "./router.js";
import { tookView } from "./run_panel.js";
import { Schedules } from "./schedules.js";

const PAGE = 100;
const TYPING_MS = 200;
const REFRESH_MS = 500;
const STATUSES = ["running", "waiting", "pending", "failed", "completed", "cancelled"];
const COLUMNS = ["Status", "Agent or handler", "Thread", "Run", "App", "User", "Started", "Duration", "Attempts", "Tokens", "Cost", "Error"];
const FIGURES = ["Duration", "Attempts", "Tokens", "Cost"];

export class RunsPage {
  /** `actions`: open(threadId, runId), failed(error), query() the app and the user that the caller may see, isOfApps() whether it must name an app. */
  constructor(root, actions) {
    this._root = root;
    this._actions = actions;
    this._schedules = new Schedules(actions);
    this._status = h("select", { id: "runs-status", "aria-label": "Status" }, h("option", { value: "" }, "Any status"), STATUSES.map((name) => h("option", { value: name }, name)));
    this._app = h("select", { id: "runs-app", "aria-label": "App" }, h("option", { value: "" }, "Any app"));
    this._handler = h("input", { type: "search", id: "runs-handler", placeholder: "Any agent or handler", "aria-label": "Agent or handler", autocomplete: "off", spellcheck: "false" });
    this._body = h("tbody");
    this._rows = new Map();
    this._more = h("button.more-runs", { type: "button", hidden: true, onclick: () => this._loadOlder() }, "Older runs");
    this._empty = h("p.empty-line", { hidden: true });
    for (const select of [this._status, this._app]) select.addEventListener("change", () => this.load());
    this._handler.addEventListener("input", () => this._after(TYPING_MS, () => this.load()));
    this._view = h(
      "div.runs-page", {},
      h("div.runs-head", {}, h("h1", {}, "Runs"), h("div.runs-filters", {}, this._status, this._app, this._handler)),
      h("div.runs-table", { tabindex: "0", role: "region", "aria-label": "Runs of all threads" }, h("table", {}, h("thead", {}, h("tr", {}, COLUMNS.map((name) => h(FIGURES.includes(name) ? "th.figure" : "th", { scope: "col", title: name === "Cost" ? COST_UNIT : undefined }, name)))), this._body)),
      this._empty, this._more, this._schedules.element,
    );
  }

  get isOpen() {
    return this._view.isConnected;
  }

  open() {
    replace(this._root, this._view);
    this._schedules.load();
    this._loadApps();
    return this.load();
  }

  /** An event was stored: a run may have changed. */
  onEvent(type) {
    if (this.isOpen && /^run_/.test(type ?? "")) this._after(REFRESH_MS, () => this._refresh());
  }

  /** Reads the newest runs again if the page is shown. */
  refresh() {
    if (this.isOpen) this._after(0, () => this._refresh());
  }

  /** Reads the first page, after a change of the filters. */
  load() {
    return this._read(null, (page) => {
      this._rows.clear();
      this._put(page.runs);
      this._setCursor(page.next_cursor);
    });
  }

  _loadOlder() {
    return this._read(this._cursor, (page) => {
      this._put(page.runs);
      this._setCursor(page.next_cursor);
    });
  }

  /** Reads the first page again. Rows of older pages stay, and those that do not match any more go. */
  _refresh() {
    return this._read(null, (page) => {
      const oldest = page.next_cursor === null ? null : page.runs.at(-1);
      const found = new Set(page.runs.map(keyOf));
      for (const [key, { run }] of this._rows) {
        if (!found.has(key) && (oldest === null || run.created_at >= oldest.created_at)) this._rows.delete(key);
      }
      this._put(page.runs);
      if (!this._cursor) this._setCursor(page.next_cursor);
    });
  }

  _after(ms, action) {
    clearTimeout(this._timer);
    // Many events do not postpone a refresh for ever.
    this._due ??= Date.now() + ms;
    this._timer = setTimeout(() => ((this._due = null), action()), Math.max(0, Math.min(ms, this._due - Date.now())));
  }

  async _read(cursor, take) {
    const turn = (this._turn = (this._turn ?? 0) + 1);
    const allowed = this._actions.query();
    const query = { ...allowed, status: this._status.value, app_name: this._app.value || allowed.app_name, handler: this._handler.value.trim(), with_usage: true, limit: PAGE, cursor };
    try {
      const page = await get("api/debug/runs", query);
      if (turn !== this._turn) return;
      take(page);
      this._empty.hidden = this._rows.size > 0;
      this._empty.textContent = this._isFiltered() ? "No run matches." : "No runs yet. A message to an agent starts one, and workers run those that are enqueued.";
    } catch (error) {
      if (turn !== this._turn) return;
      this._empty.hidden = false;
      this._empty.textContent = error.message;
    }
  }

  async _loadApps() {
    try {
      const { apps } = await get("api/debug/apps");
      const chosen = this._app.value;
      const isOfApps = this._actions.isOfApps();
      replace(this._app, !isOfApps && h("option", { value: "" }, "Any app"), apps.map((name) => h("option", { value: name }, name)));
      this._app.value = apps.includes(chosen) ? chosen : isOfApps ? this._actions.query().app_name : "";
    } catch (error) {
      this._actions.failed(error);
    }
  }

  _isFiltered() {
    return Boolean(this._status.value || this._app.value || this._handler.value.trim());
  }

  _setCursor(cursor) {
    this._cursor = cursor;
    this._more.hidden = !cursor;
  }

  /** Shows runs, newest first. The row of a run that did not change is not touched, nor are equal cells: they keep the focus. */
  _put(runs) {
    for (const run of runs) {
      const key = keyOf(run);
      const print = JSON.stringify(run);
      const known = this._rows.get(key);
      if (known?.print === print) continue;
      const element = known?.element ?? h("tr", { "data-run": run.id });
      const old = new Map([...element.children].map((cell) => [cell.dataset.column, cell]));
      element.dataset.status = run.status;
      arrange(element, cellsOf(run, () => this._actions.open(run.thread_id, run.id)).map((cell) => (old.get(cell.dataset.column)?.isEqualNode(cell) ? old.get(cell.dataset.column) : cell)));
      this._rows.set(key, { run, print, element });
    }
    const ordered = [...this._rows.values()].sort((one, other) => (one.run.created_at < other.run.created_at ? 1 : one.run.created_at > other.run.created_at ? -1 : 0));
    this._rows = new Map(ordered.map((row) => [keyOf(row.run), row]));
    arrange(this._body, ordered.map((row) => row.element));
  }
}

function keyOf(run) {
  return `${run.thread_id}/${run.id}`;
}

/** The cells of a run. */
function cellsOf(run, open) {
  const started = run.started_at ?? run.created_at;
  const cell = (column, content, props = {}) => h(FIGURES.includes(column) ? "td.figure" : "td", { "data-column": column, ...props }, content);
  const user = h("a", { href: format({ page: "user", app: run.app_name, user: run.user_id }), title: run.user_id }, run.user_id);
  return [
    cell("Status", h("span.pill", { "data-status": run.status }, run.status)),
    cell("Agent or handler", run.handler?.startsWith("agui/") ? [icon("person"), " ", run.handler.slice(5)] : run.handler ?? h("span.muted", {}, "–"), { title: run.handler, "data-empty": !run.handler }),
    cell("Thread", h("a", { href: format({ threadId: run.thread_id }), title: titleOf(run) }, titleOf(run))),
    cell("Run", h("button.link", { type: "button", title: run.id, onclick: open }, h("code", {}, shortId(run.id)))),
    cell("App", run.app_name, { title: run.app_name }), cell("User", user), cell("Started", h("time", { title: exact(started) }, since(started))),
    cell("Duration", tookView(run)),
    cell("Attempts", String(run.attempt)),
    cell("Tokens", run.usage.calls ? number(run.usage.input_tokens + run.usage.output_tokens) : "–", { "data-figure": "tokens", "data-empty": !run.usage.calls, title: run.usage.calls ? tokens(run.usage) : undefined }),
    cell("Cost", run.usage.cost === null ? "–" : cost(run.usage.cost), { "data-figure": "cost", "data-empty": run.usage.cost === null }),
    cell("Error", run.error ?? "", { title: run.error }),
  ];
}
