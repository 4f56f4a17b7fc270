// One user of an app: threads, `user:` state, memories, tokens and cost; export and erase all of it.

import { get, request, thread } from "./api.js";
import { h, icon, replace } from "./dom.js";
import { COST_UNIT, ago, cost, exact, number, titleOf } from "./format.js";
import { text as longText, valueView } from "./value_tree.js";

const MOST = 50;
const MOST_MEMORY = 1000;

export class UserPage {
  /** `actions`: erased(), failed(error), may(permission). */
  constructor(root, actions) {
    this._root = root;
    this._actions = actions;
  }

  open(app, user) {
    this._whose = { app_name: app, user_id: user };
    const section = (title) => {
      const body = h("div", {}, h("p.empty-line", {}, "Reading…"));
      return [h("section.user-section", { "aria-label": title }, h("h2", {}, title), body), body];
    };
    const [threads, threadList] = section("Threads");
    const [usage, usageTable] = section("Tokens and cost");
    const [state, stateRows] = section("State of the user");
    const [memories, memoryList] = section("Memories");
    replace(
      this._root,
      h(
        "div.user-page", {},
        h("div.runs-head", {}, h("h1", {}, icon("person"), h("span", {}, user), h("span.tag", {}, app)), this._actions.may("admin") && h("div.buttons", {}, h("button", { type: "button", id: "export-user", onclick: () => this._export() }, icon("download"), "Export"), h("button.danger", { type: "button", id: "erase-user", onclick: () => this._ask() }, icon("trash"), "Erase"))),
        h("div.user-grid", {}, threads, usage, state, memories),
      ),
    );
    this._fill(threadList, () => this._threads(stateRows));
    this._fill(usageTable, () => this._usage());
    this._fill(memoryList, () => this._memories());
  }

  async _fill(place, read) {
    try {
      replace(place, await read());
    } catch (error) {
      replace(place, h("p.empty-line.is-error", {}, error.message));
    }
  }

  /** The newest thread also shows the `user:` keys, which are the same in all threads of the user. */
  _threads(stateRows) {
    return this._list("ul", "No threads.", async (cursor) => {
      const { threads, next_cursor: next } = await get("api/debug/threads", { ...this._whose, limit: MOST, cursor });
      if (!cursor) this._fill(stateRows, () => this._state(threads[0]));
      const rows = threads.map((one) => h("li.user-thread", {}, h("a", { href: `#/thread/${one.thread_id}` }, titleOf(one)), h("span.pill", { "data-status": one.status }, one.status), h("time", { title: exact(one.updated_at) }, ago(one.updated_at))));
      return [rows, next];
    });
  }

  /** A list with a button for its next page. `read(cursor)` resolves to rows and the next cursor. */
  async _list(kind, nothing, read) {
    const [rows, next] = await read(null);
    if (!rows.length) return h("p.empty-line", {}, nothing);
    const list = h(kind, {}, rows);
    let cursor = next;
    const more = h("button.more", { type: "button", hidden: !cursor }, "More");
    more.addEventListener("click", async () => {
      more.disabled = true;
      try {
        const [others, after] = await read(cursor);
        list.append(...others);
        more.hidden = !(cursor = after);
      } catch (error) {
        this._actions.failed(error);
      }
      more.disabled = false;
    });
    return [list, more];
  }

  async _state(newest) {
    const values = newest ? (await get(thread(newest.thread_id, "/scopes"))).scopes.user ?? {} : {};
    const entries = Object.entries(values);
    if (!entries.length) return h("p.empty-line", {}, "No keys with the prefix user:.");
    return entries.map(([key, value]) => h("div.state-row", {}, h("span.k", {}, key), h("div.state-value", {}, valueView(value, { name: key })), h("span")));
  }

  async _usage() {
    return usageView(await get("api/usage", this._whose));
  }

  _memories() {
    return this._list("div", "No memories.", async (cursor) => {
      const { memories, next_cursor: next } = await get("memory", { ...this._whose, limit: MOST, cursor });
      return [memories.map(memoryView), next];
    });
  }

  async _export() {
    const { app_name: app, user_id: user } = this._whose;
    try {
      const response = await request("api/user-data", { query: this._whose, timeoutMs: 0 });
      const link = h("a", { href: URL.createObjectURL(await response.blob()), download: `${app}-${user}.ndjson`.replace(/[^\w.@-]+/g, "_") });
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
    } catch (error) {
      this._actions.failed(error);
    }
  }

  /** Asks for the user's id, because erasure is permanent. */
  _ask() {
    const { user_id: user } = this._whose;
    const typed = h("input", { type: "text", id: "erase-confirm", "aria-label": "User id", autocomplete: "off", spellcheck: "false" });
    const erase = h("button.danger", { type: "submit", id: "confirm-erase", disabled: true }, icon("trash"), "Erase");
    const dialog = h("dialog.dialog", { "aria-label": "Erase this user" });
    const form = h("form.sign-in", {}, h("h2", {}, "Erase all data of this user?"), h("p", {}, "Threads, events, messages, state, memories, runs and files. Type ", h("code", {}, user), " to confirm. This cannot be undone."), typed, h("div.buttons", {}, erase, h("button", { type: "button", onclick: () => dialog.close() }, "Keep")));
    typed.addEventListener("input", () => (erase.disabled = typed.value !== user));
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      dialog.close();
      try {
        await request("api/user-data", { method: "DELETE", query: this._whose });
        this._actions.erased();
      } catch (error) {
        this._actions.failed(error);
      }
    });
    dialog.append(form);
    dialog.addEventListener("close", () => dialog.remove());
    document.body.append(dialog);
    dialog.showModal();
  }
}

function memoryView(memory) {
  return h("article.entry", {}, h("div.entry-text", {}, longText(memory.text, { quote: false, shown: MOST_MEMORY })), h("div.entry-meta", {}, h("span.tag", {}, memory.kind), memory.author && h("span", {}, memory.author), h("time", { title: exact(memory.created_at) }, ago(memory.created_at))));
}

/** Tokens by model, with the cost where a price is set. */
export function usageView(usage) {
  if (!usage.calls) return h("p.empty-line", {}, "No model calls were counted.");
  const row = (name, one) => h("tr", {}, h("td", {}, name), h("td.figure", {}, number(one.calls)), h("td.figure", {}, number(one.input_tokens)), h("td.figure", {}, number(one.output_tokens)), h("td.figure", {}, one.cost === null ? "–" : cost(one.cost)));
  const names = ["Model", "Calls", "Input", "Output", "Cost"];
  return h("div.runs-table", { tabindex: "0", role: "region", "aria-label": "Tokens and cost" }, h("table", {}, h("thead", {}, h("tr", {}, names.map((name) => h(name === "Model" ? "th" : "th.figure", { scope: "col", title: name === "Cost" ? COST_UNIT : undefined }, name)))), h("tbody", {}, usage.models.map((one) => row(one.model, one)), usage.models.length > 1 && row("Total", usage))));
}
