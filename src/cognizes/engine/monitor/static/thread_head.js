// The head of a thread: title, status, what the timeline shows, search in the thread, pause, export, delete.

import { get, request, thread } from "./api.js";
import { h, icon, replace } from "./dom.js";
import { counted, shortId, titleOf } from "./format.js";
import { format } from "./router.js";

const SHOWN = ["all", "messages", "tools", "state", "runs"];
const TYPING_MS = 200;

export class ThreadHead {
  /**
   * `actions`: show(kind), pause(isPaused), view(name), reveal(sequence), renamed(thread), deleted(thread),
   * failed(error), may(permission).
   */
  constructor(root, actions) {
    this._root = root;
    this._actions = actions;
  }

  clear() {
    this._thread = null;
    clearTimeout(this._typing);
    replace(this._root);
  }

  open(one, { find = null } = {}) {
    clearTimeout(this._typing);
    this._thread = one;
    this._title = h("div.title-line");
    this._status = h("span.pill", { id: "status" });
    this._count = h("span.muted", { id: "count" });
    this._branch = h("span.tag", { id: "active-branch", title: "The active branch", hidden: true });
    this._pause = h("button.icon-button", { type: "button", id: "pause", "aria-pressed": "false", "aria-label": "Pause updates", title: "Pause updates", onclick: () => this._actions.pause(this._pause.getAttribute("aria-pressed") !== "true") });
    const kinds = h("select.kinds", { id: "show-kinds", "aria-label": "Show", onchange: (event) => this._actions.show(event.target.value) }, SHOWN.map((name) => h("option", { value: name }, name === "all" ? "Everything" : name[0].toUpperCase() + name.slice(1))));
    const exports = (kind) => h("button", { type: "button", id: `export-${kind}`, onclick: () => this._export(kind) }, kind.toUpperCase());
    const user = h("a.tag", { id: "user-link", href: format({ page: "user", app: one.app_name, user: one.user_id }), title: "Threads, state, memories and tokens of this user" }, icon("person"), one.user_id);
    replace(
      this._root,
      h("button.icon-button.only-narrow", { type: "button", "aria-label": "Back to the threads", onclick: () => this._actions.view("list") }, icon("back")),
      h("div.head-title", {}, this._title, h("div.head-sub", {}, this._status, h("span.tag", {}, one.app_name), user, this._branch, h("code", { title: one.thread_id }, shortId(one.session_id)), this._count)),
      h("button.icon-button.only-narrow", { type: "button", id: "open-inspector", "aria-label": "Inspector", title: "State, event, run, memory, branches", onclick: () => this._actions.view("inspector") }, icon("panel")),
      h(
        "div.head-tools", {}, this._search(), kinds, this._pause,
        h("div.menu", { role: "group", "aria-label": "Export" }, icon("download"), exports("json"), exports("ndjson")),
        this._actions.may("write") && h("button.icon-button", { type: "button", id: "delete-thread", "aria-label": "Delete this thread", title: "Delete this thread", onclick: () => this._delete() }, icon("trash")),
      ),
    );
    this._actions.show("all");
    this.setPaused(false);
    this.setCount(one.last_sequence);
    this.setStatus(one.status);
    this.showTitle();
    if (find) {
      this._find.value = find;
      this._load();
    }
  }

  setStatus(status, context) {
    this._status.dataset.status = status;
    this._status.textContent = status;
    if (context) this._status.title = `Context: ${context}`;
  }

  setContext(context) {
    this._status.title = `Context: ${context}`;
  }

  setCount(last) {
    this._count.textContent = counted(last, "event");
  }

  /** Names the active branch of a thread that has several; null of one that has a single branch. */
  setBranch(name) {
    if (!this._thread) return;
    this._branch.hidden = name === null;
    replace(this._branch, icon("branch"), name);
  }

  setPaused(isPaused) {
    this._pause.setAttribute("aria-pressed", String(isPaused));
    replace(this._pause, icon(isPaused ? "play" : "pause"));
  }

  /** Shows the title of the thread, also in the title of the window. A title that is being edited stays. */
  showTitle() {
    const one = this._thread;
    document.title = `${titleOf(one)} · Cognizes Monitor`;
    if (this._title.querySelector("input")) return;
    const rename = h("button.icon-button.rename", { type: "button", id: "rename", "aria-label": "Rename", title: "Rename", onclick: () => this._rename() }, icon("pencil"));
    replace(this._title, h("h1", {}, titleOf(one)), this._actions.may("write") && rename);
  }

  /** Edits the title in its place: Enter and leaving the field save it, Escape keeps the old one. */
  _rename() {
    const one = this._thread;
    const before = one.title ?? "";
    const input = h("input.title-input", { type: "text", value: before, placeholder: titleOf(one), "aria-label": "Title", maxlength: "200" });
    let isDone = false;
    const finish = async (isSaved) => {
      if (isDone) return;
      isDone = true;
      const title = input.value.trim();
      if (isSaved && title !== before) {
        try {
          one.title = (await (await request(`api/sessions/${one.thread_id}`, { method: "PATCH", json: { title } })).json()).title;
          this._actions.renamed(one);
        } catch (error) {
          this._actions.failed(error);
        }
      }
      if (this._thread !== one) return;
      const hadFocus = document.activeElement === input;
      replace(this._title);
      this.showTitle();
      if (hadFocus) this._title.querySelector("#rename")?.focus();
    };
    input.addEventListener("keydown", (event) => {
      if (event.key === "Escape") {
        event.stopPropagation();
        finish(false);
      } else if (event.key === "Enter" && !event.isComposing) finish(true);
    });
    input.addEventListener("blur", () => finish(true));
    replace(this._title, input);
    input.focus();
  }

  /** Asks first, because deletion is permanent. */
  _delete() {
    const one = this._thread;
    const dialog = h("dialog.dialog", { "aria-label": "Delete this thread" });
    const remove = async () => {
      dialog.close();
      try {
        await request(`api/sessions/${one.thread_id}`, { method: "DELETE" });
        this._actions.deleted(one);
      } catch (error) {
        this._actions.failed(error);
      }
    };
    dialog.append(
      h("div.sign-in", {}, h("h2", {}, "Delete this thread?"), h("p", {}, `“${titleOf(one)}” with ${counted(one.last_sequence, "event")}, its messages, runs and state. This cannot be undone.`), h("div.buttons", {}, h("button.danger", { type: "button", id: "confirm-delete", onclick: remove }, icon("trash"), "Delete"), h("button", { type: "button", onclick: () => dialog.close() }, "Keep"))),
    );
    dialog.addEventListener("close", () => dialog.remove());
    document.body.append(dialog);
    dialog.showModal();
  }

  async _export(kind) {
    const { thread_id: id } = this._thread;
    try {
      const response = await request(thread(id, "/export"), { query: { format: kind }, timeoutMs: 0 });
      const link = h("a", { href: URL.createObjectURL(await response.blob()), download: `thread-${id}.${kind}` });
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
    } catch (error) {
      this._actions.failed(error);
    }
  }

  // Search in the thread: the timeline keeps only a part of it in the page, so the browser's own search does not find the rest.

  _search() {
    this._find = h("input", { type: "search", id: "thread-find", placeholder: "Find in thread", "aria-label": "Find in thread", autocomplete: "off", spellcheck: "false" });
    this._hits = h("ol.find-hits", { id: "find-hits", "aria-label": "Messages that contain the text", hidden: true });
    this._find.addEventListener("input", () => {
      clearTimeout(this._typing);
      this._typing = setTimeout(() => this._load(), TYPING_MS);
    });
    const box = h("div.find", {}, this._find, this._hits);
    box.addEventListener("keydown", (event) => this._onFindKey(event));
    box.addEventListener("focusin", () => (this._hits.hidden = !this._hits.children.length));
    box.addEventListener("focusout", (event) => box.contains(event.relatedTarget) || (this._hits.hidden = true));
    return box;
  }

  _onFindKey(event) {
    const places = [this._find, ...this._hits.querySelectorAll("button")];
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (event.key === "Escape") {
      event.stopPropagation();
      this._hits.hidden = true;
      this._find.focus();
      this._hits.hidden = true;
    } else if (event.key === "Enter" && event.target === this._find) {
      event.preventDefault();
      places[1]?.click();
    } else if (step) {
      event.preventDefault();
      places[places.indexOf(document.activeElement) + step]?.focus();
    }
  }

  async _load(before = null) {
    const one = this._thread;
    const text = this._find.value.trim();
    if (!text) {
      replace(this._hits);
      this._hits.hidden = true;
      return;
    }
    let found;
    try {
      found = await get(thread(one.thread_id, "/messages"), { q: text, before });
    } catch (error) {
      this._actions.failed(error);
      return;
    }
    if (one !== this._thread || text !== this._find.value.trim()) return;
    const hits = found.hits.map((hit) => h("li", {}, h("button", { type: "button", "data-hit": hit.sequence_num, onclick: () => this._actions.reveal(hit.sequence_num) }, h("span.seq", {}, `#${hit.sequence_num}`), h("span.muted", {}, hit.role), h("span.find-excerpt", {}, marked(hit.excerpt, text)))));
    if (before === null) replace(this._hits, hits.length ? hits : h("li.empty-line", {}, "No message contains this text."));
    else {
      this._hits.lastElementChild.remove();
      this._hits.append(...hits);
    }
    if (found.has_more) this._hits.append(h("li", {}, h("button", { type: "button", onclick: () => this._load(found.hits.at(-1).sequence_num) }, "Earlier messages")));
    this._hits.hidden = false;
  }
}

/** The excerpt with the text marked. */
function marked(excerpt, text) {
  const place = excerpt.toLowerCase().indexOf(text.toLowerCase());
  if (place < 0) return excerpt;
  return [excerpt.slice(0, place), h("mark", {}, excerpt.slice(place, place + text.length)), excerpt.slice(place + text.length)];
}
