// The list of threads: search, filters, pages; dots flash when a thread has a new event.

import { get } from "./api.js";
import { h, icon, replace } from "./dom.js";
import { ago, exact, shortId, titleOf } from "./format.js";
import { format } from "./router.js";

const PAGE = 50;
const DEFAULT_USER = "default";
const STATUSES = ["running", "waiting", "pending", "failed", "idle"];
const TYPING_MS = 200;
const REFRESH_MS = 250;
const FILTERED_REFRESH_MS = 1000;
const MOST_READ = 200;
const MOST_ROWS = 500;

export class ThreadList {
  /** `open(threadId)` is called for a chosen thread. */
  constructor(root, { open, create }) {
    this._open = open;
    this._rows = new Map();
    this._cursor = null;
    this._pending = new Set();
    this._flashing = new Set();
    this._search = h("input", { type: "search", id: "thread-search", placeholder: "Search threads", "aria-label": "Search threads", autocomplete: "off", spellcheck: "false" });
    this._app = h("select", { "aria-label": "App", id: "filter-app" }, h("option", { value: "" }, "All apps"));
    this._user = h("input", { type: "text", id: "filter-user", placeholder: "Any user", "aria-label": "User", autocomplete: "off", spellcheck: "false" });
    this._status = h("select", { "aria-label": "Status", id: "filter-status" }, h("option", { value: "" }, "Any status"), STATUSES.map((name) => h("option", { value: name }, name)));
    this._items = h("ul.threads", { "aria-label": "Threads" });
    this._more = h("div.sentinel");
    this._scroller = h("div.thread-scroller", {}, this._items, this._more);
    this._newAgent = h("select", { id: "new-agent", "aria-label": "Agent of the new conversation" });
    this._newUser = h("input", { type: "text", id: "new-user", value: DEFAULT_USER, placeholder: DEFAULT_USER, "aria-label": "User of the new conversation", autocomplete: "off", spellcheck: "false" });
    this._new = h(
      "form.new-thread", { hidden: true, onsubmit: (event) => (event.preventDefault(), create()) },
      h("div.filters", {}, h("label", {}, h("span.label", {}, "Agent"), this._newAgent), h("label", {}, h("span.label", {}, "User"), this._newUser)),
      h("button.primary", { type: "submit" }, icon("plus"), "New conversation"),
    );
    root.append(
      h("div.list-head", {}, h("label.search", {}, icon("search"), this._search), h("div.filters", {}, this._app, this._user, this._status), this._new),
      this._scroller,
    );
    this._search.addEventListener("input", () => this._soon());
    this._user.addEventListener("input", () => this._soon());
    for (const select of [this._app, this._status]) select.addEventListener("change", () => this.load());
    new IntersectionObserver((entries) => entries.some((entry) => entry.isIntersecting) && this._nextPage(), { root: this._scroller, rootMargin: "400px" }).observe(this._more);
    this._items.addEventListener("keydown", (event) => this._onKey(event));
    setInterval(() => this._showTimes(), 10_000);
  }

  /** Offers a new conversation with one of the agents. `user` is the one that the caller is bound to, or null. */
  showNew(agents, user) {
    this._new.hidden = !agents.length;
    replace(this._newAgent, agents.map((name) => h("option", { value: name }, name)));
    if (user !== null) {
      this._newUser.value = user;
      this._newUser.disabled = true;
    }
  }

  /** Limits the list to what the caller's key or token may see: `{ app_names, user_id }`, each null for all. */
  limitTo(caller) {
    if (caller?.app_names) this._mustName = caller.app_names;
    if (!caller?.user_id) return;
    this._user.value = caller.user_id;
    this._user.disabled = true;
  }

  get chosenApp() {
    return this._app.value || this._mustName?.[0] || "";
  }

  /** A thread was deleted. */
  remove(threadId) {
    this._rows.get(threadId)?.row.remove();
    this._rows.delete(threadId);
  }

  get chosenAgent() {
    return this._newAgent.value;
  }

  get chosenUser() {
    return this._newUser.value.trim() || DEFAULT_USER;
  }

  focusSearch() {
    this._search.focus();
    this._search.select();
  }

  /** Loads the first page and the apps. */
  async load() {
    const turn = (this._turn = (this._turn ?? 0) + 1);
    get("api/debug/apps").then(({ apps }) => this._showApps(apps), () => {});
    try {
      const page = await get("api/debug/threads", { ...this._query(), limit: PAGE });
      if (turn !== this._turn) return;
      this._rows.clear();
      replace(this._items);
      for (const thread of page.threads) this._put(thread, "end");
      this._cursor = page.next_cursor;
      this._more.hidden = !this._cursor;
      if (!page.threads.length) this._showEmpty();
    } catch (error) {
      if (turn === this._turn) replace(this._items, h("li.empty-line.is-error", {}, error.message));
    }
  }

  /** Read what may have changed between the first page and the first notification. Rows stay. */
  async catchUp() {
    const turn = this._turn;
    try {
      const { threads } = await get("api/debug/threads", { ...this._query(), limit: PAGE });
      if (turn !== this._turn) return;
      for (const thread of threads.reverse()) {
        if (this._rows.get(thread.thread_id)?.thread.last_sequence !== thread.last_sequence) this._put(thread, "start");
      }
    } catch {
      // The next event reads the list again.
    }
  }

  select(threadId) {
    this._selected = threadId;
    for (const [id, item] of this._rows) item.link.setAttribute("aria-current", id === threadId ? "true" : "false");
  }

  /** A thread has a new event: its dot flashes, and its row is read again soon. */
  pulse(threadId) {
    this._flashing.add(threadId);
    this._flash ??= requestAnimationFrame(() => this._showFlashes());
    this._pending.add(threadId);
    this._refreshing ??= setTimeout(() => this._refresh(), this._refreshPause());
  }

  /** Starts the animation of all dots of a frame again, with one layout. */
  _showFlashes() {
    this._flash = null;
    const rows = [...this._flashing].map((id) => this._rows.get(id)?.row).filter(Boolean);
    this._flashing.clear();
    for (const row of rows) row.classList.remove("is-live");
    void this._items.offsetWidth;
    for (const row of rows) row.classList.add("is-live");
  }

  _refreshPause() {
    return this._isFiltered() ? FILTERED_REFRESH_MS : REFRESH_MS;
  }

  async _refresh() {
    const ids = [...this._pending].slice(0, MOST_READ);
    for (const id of ids) this._pending.delete(id);
    const turn = this._turn;
    try {
      // The server decides which threads match the filters. A thread with a new event is among the first.
      const isFiltered = this._isFiltered();
      const query = isFiltered ? { ...this._query(), limit: PAGE } : { ids: ids.join(","), ...(this._mustName ? { app_name: this.chosenApp } : {}) };
      const { threads } = await get("api/debug/threads", query);
      if (turn !== this._turn) return;
      const found = new Set(threads.map((thread) => thread.thread_id));
      if (isFiltered) for (const id of ids) if (!found.has(id)) this.remove(id);
      for (const thread of threads.reverse()) {
        if (!isFiltered || ids.includes(thread.thread_id) || !this._rows.has(thread.thread_id)) this._put(thread, "start");
      }
      if (!this._rows.size) this._showEmpty();
      if (this._rows.size > MOST_ROWS && (this._scroller.scrollTop < this._scroller.clientHeight || this._rows.size > 4 * MOST_ROWS)) this.load();
    } catch {
      // The next event of a thread reads it again.
    } finally {
      this._refreshing = this._pending.size ? setTimeout(() => this._refresh(), this._refreshPause()) : null;
    }
  }

  _showEmpty() {
    replace(this._items, h("li.empty-line", {}, this._isFiltered() ? "No thread matches." : "No threads yet."));
  }

  _query() {
    return { q: this._search.value.trim(), app_name: this.chosenApp, user_id: this._user.value.trim(), status: this._status.value };
  }

  _isFiltered() {
    return Boolean(this._search.value.trim() || (this._app.value && !this._mustName) || (this._user.value.trim() && !this._user.disabled) || this._status.value);
  }

  _soon() {
    clearTimeout(this._typing);
    this._typing = setTimeout(() => this.load(), TYPING_MS);
  }

  async _nextPage() {
    if (!this._cursor || this._loading) return;
    this._loading = true;
    const turn = this._turn;
    try {
      const page = await get("api/debug/threads", { ...this._query(), limit: PAGE, cursor: this._cursor });
      if (turn !== this._turn) return;
      for (const thread of page.threads) if (!this._rows.has(thread.thread_id)) this._put(thread, "end");
      this._cursor = page.next_cursor;
      this._more.hidden = !this._cursor;
    } catch {
      this._cursor = null;
    } finally {
      this._loading = false;
      // Still in view: the observer reports changes only.
      if (this._cursor && this._isEndInView()) this._nextPage();
    }
  }

  _isEndInView() {
    const { scrollHeight, scrollTop, clientHeight } = this._scroller;
    return scrollHeight - scrollTop - clientHeight < 400;
  }

  _put(thread, where) {
    this._items.querySelector(".empty-line")?.remove();
    const item = this._rows.get(thread.thread_id) ?? this._newRow(thread.thread_id);
    item.thread = thread;
    const words = this._search.value.trim();
    item.link.href = format({ threadId: thread.thread_id, find: words && words !== thread.thread_id ? words : null });
    item.row.dataset.status = thread.status;
    item.dot.title = thread.status;
    item.title.textContent = titleOf(thread);
    item.time.textContent = ago(thread.updated_at);
    item.time.title = exact(thread.updated_at);
    item.app.textContent = thread.app_name;
    item.whose.textContent = ` · ${thread.user_id} · ${shortId(thread.session_id)}`;
    item.count.textContent = String(thread.last_sequence);
    if (where === "end") {
      if (!item.row.isConnected) this._items.append(item.row);
    } else if (this._items.firstElementChild !== item.row) {
      const focused = item.row.contains(document.activeElement);
      this._items.prepend(item.row);
      if (focused) item.link.focus();
    }
  }

  /** A row is made once and changed in place: one that is replaced while it is pressed is never clicked. */
  _newRow(threadId) {
    const item = { dot: h("span.dot"), title: h("span.thread-title"), time: h("time"), app: h("span.app"), whose: h("span"), count: h("span.thread-count", { title: "events" }) };
    item.link = h("a", { "aria-current": String(threadId === this._selected) }, item.dot, item.title, item.time, h("span.thread-sub", {}, item.app, item.whose), item.count);
    item.row = h("li.thread", { "data-thread": threadId }, item.link);
    this._rows.set(threadId, item);
    return item;
  }

  _showApps(apps) {
    const chosen = this._app.value;
    replace(this._app, !this._mustName && h("option", { value: "" }, "All apps"), apps.map((name) => h("option", { value: name }, name)));
    this._app.value = apps.includes(chosen) ? chosen : (this._mustName?.[0] ?? "");
  }

  _showTimes() {
    for (const { time, thread } of this._rows.values()) time.textContent = ago(thread.updated_at);
  }

  _onKey(event) {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step) return;
    const links = [...this._items.querySelectorAll("a")];
    links[links.indexOf(document.activeElement) + step]?.focus();
    event.preventDefault();
  }
}
