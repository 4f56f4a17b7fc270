// The state of a thread by scope, live or at an event, with the history of a key.

import { get, thread } from "./api.js";
import { diffView } from "./diff.js";
import { h, icon, replace } from "./dom.js";
import { exact, number, shortId, since } from "./format.js";
import { isCut, valueView } from "./value_tree.js";

const SCOPES = [
  ["session", "", "this thread"],
  ["user", "user:", "all threads of this user"],
  ["app", "app:", "every user of this app"],
  ["temp", "temp:", "one invocation; never stored"],
];

export class StatePanel {
  /** `actions`: showKey(key | null), reveal(sequence), openRun(id). */
  constructor(root, actions) {
    this._actions = actions;
    this._info = h("div.panel-note");
    this._filter = h("input", { type: "search", placeholder: "Filter keys", "aria-label": "Filter keys", autocomplete: "off" });
    this._filter.addEventListener("input", () => this._applyFilter());
    this._groups = h("div.scopes");
    this._history = h("div.key-history", { hidden: true });
    root.append(h("div.panel-bar", {}, this._filter, this._info), this._history, this._groups);
    this._shown = new Map();
  }

  /** Another thread. */
  open(threadId) {
    this._threadId = threadId;
    this._shown = new Map();
    this._at = null;
    this._first = true;
    replace(this._groups);
    this.showKey(null);
  }

  /** Reads the state, now or at an event; what changed flashes. */
  async load(at = null) {
    const threadId = this._threadId;
    const turn = (this._turn = (this._turn ?? 0) + 1);
    try {
      const state = await get(thread(threadId, "/scopes"), { sequence: at ?? undefined });
      if (turn !== this._turn || threadId !== this._threadId) return;
      this._at = at;
      this._show(state);
    } catch (error) {
      if (turn === this._turn) replace(this._info, h("span.is-error", {}, error.message));
    }
  }

  _show(state) {
    replace(this._info, this._at === null ? h("span.tag.is-live-tag", {}, "live") : h("span.tag.is-past-tag", {}, `at event ${state.sequence_num}`), ` version ${number(state.version)}`);
    if (!this._groups.firstChild) this._groups.append(...SCOPES.map(([scope, , hint]) => scopeSection(scope, hint)));
    for (const [scope, prefix] of SCOPES) this._showScope(scope, prefix, state.scopes[scope] ?? {});
    this._first = false;
    this._applyFilter();
  }

  /** Touches only rows that changed: what is being read, folded open or clicked stays as it is. */
  _showScope(scope, prefix, values) {
    const section = this._groups.querySelector(`[data-scope="${scope}"]`);
    const rows = section.querySelector(".scope-rows");
    const present = new Set();
    for (const [key, value] of Object.entries(values)) {
      const full = prefix + key;
      const print = JSON.stringify(value);
      const known = this._shown.get(full);
      present.add(full);
      if (known?.print === print) continue;
      const isOpen = known?.row.querySelector(".fold")?.getAttribute("aria-expanded") === "true";
      const row = this._row(full, key, value, isOpen);
      if (!this._first) row.classList.add("is-changed");
      if (known) known.row.replaceWith(row);
      else rows.append(row);
      this._shown.set(full, { print, row, scope });
    }
    for (const [full, { row, scope: of }] of this._shown) {
      if (of !== scope || present.has(full)) continue;
      row.remove();
      this._shown.delete(full);
    }
    section.querySelector(".scope-count").textContent = present.size ? String(present.size) : "";
    section.querySelector(".empty-line").hidden = present.size > 0;
  }

  _row(full, key, value, isOpen) {
    const loadWhole = async () => (await get(thread(this._threadId, "/value"), { key: full, sequence: this._at ?? undefined })).value;
    const clockButton = h("button.link.history-button", { type: "button", "aria-label": `History of ${full}`, title: "History of this key", onclick: () => this._actions.showKey(full) }, icon("clock"));
    return h("div.state-row", { "data-key": full }, h("span.k", {}, key), h("div.state-value", {}, valueView(value, { name: key, loadWhole, open: isOpen ? 1 : 0 })), clockButton);
  }

  _applyFilter() {
    const wanted = this._filter.value.trim().toLowerCase();
    for (const row of this._groups.querySelectorAll(".state-row")) row.hidden = Boolean(wanted) && !row.dataset.key.toLowerCase().includes(wanted);
  }

  /** Shows author, time and run of each write of a key; null closes the history. */
  async showKey(key) {
    this._key = key;
    this._history.hidden = !key;
    if (!key) return;
    const head = h("div.history-head", {}, icon("clock"), h("strong", {}, "History of "), h("code", {}, key), h("button.link", { type: "button", "aria-label": "Close history", onclick: () => this._actions.showKey(null) }, icon("close")));
    replace(this._history, head, h("p.empty-line", {}, "Reading…"));
    try {
      const { history } = await get(thread(this._threadId, "/keys"), { key, limit: 200 });
      if (this._key !== key) return;
      replace(this._history, head, history.length ? h("ol.writes", {}, history.reverse().map((write, place) => this._write(key, write, history[place + 1]))) : h("p.empty-line", {}, "Not written by an event; part of the initial state."));
    } catch (error) {
      if (this._key === key) replace(this._history, head, h("p.empty-line.is-error", {}, error.message));
    }
  }

  /** One write: the value, and what changed inside a list or an object since the write before. */
  _write(key, write, earlier) {
    const here = !write.thread_id || write.thread_id === this._threadId;
    const name = key.split(":").at(-1);
    return h(
      "li.write", { "data-seq": write.sequence_num },
      h("div.write-value", {}, write.deleted ? h("span.muted", {}, "deleted") : valueView(write.value, { name })),
      isContainer(write.value) && isContainer(earlier?.value) && diffView({ added: {}, removed: {}, changed: { [key]: [earlier.value, write.value] } }),
      h(
        "div.write-meta", {},
        h("span.author", {}, write.author ?? "at creation"),
        h("time", { title: exact(write.time) }, since(write.time)),
        write.run_id && (here ? h("button.link", { type: "button", onclick: () => this._actions.openRun(write.run_id) }, `run ${shortId(write.run_id)}`) : h("span", {}, `run ${shortId(write.run_id)}`)),
        write.sequence_num && (here ? h("button.link", { type: "button", onclick: () => this._actions.reveal(write.sequence_num) }, `#${write.sequence_num}`) : h("a", { href: `#/thread/${write.thread_id}?event=${write.sequence_num}` }, `other thread #${write.sequence_num}`)),
        h("span.muted", {}, `v${write.version}`),
      ),
    );
  }
}

/** Whether a value is a list or an object that is not cut. */
function isContainer(value) {
  return value !== null && typeof value === "object" && !isCut(value);
}

function scopeSection(scope, hint) {
  return h(
    "section.scope", { class: `scope-${scope}`, "data-scope": scope },
    h("h3", {}, h("span.scope-name", {}, scope), h("span.scope-count"), h("span.scope-hint", {}, hint)),
    h("div.scope-rows"), h("p.empty-line", {}, scope === "temp" ? "lives in a run only" : "empty"),
  );
}
