// Branches of a thread: a tree of names, fork from a point, switch, compare two tips.

import { get, request } from "./api.js";
import { diffView, difference } from "./diff.js";
import { h, icon, replace } from "./dom.js";

export class BranchPanel {
  /** `actions`: failed(error), point() the event a new branch forks at, fork(sequence) a thread of its own, switched(), loaded(branches). */
  constructor(root, actions) {
    this._actions = actions;
    this._tree = h("div");
    this._compare = h("div.block", { hidden: true });
    this._name = h("input", { type: "text", id: "branch-name", placeholder: "Name of a new branch", "aria-label": "Name of a new branch", autocomplete: "off" });
    this._point = h("span.muted");
    const form = h("form.fork-form", {}, this._name, h("button", { type: "submit", id: "branch-create" }, icon("branch"), "Branch"));
    form.addEventListener("submit", (event) => (event.preventDefault(), this._create()));
    this._fork = h("button", { type: "button", id: "fork-thread", onclick: () => actions.fork(actions.point()) }, icon("copy"), "Fork into a new thread");
    this._empty = h("div.empty", { hidden: true }, icon("branch"), h("h2", {}, "The branches cannot be read"), (this._problem = h("p")));
    this._content = h("div", {}, h("p.panel-note", {}, "Branches share the events before their fork; creating one copies nothing."), form, h("p.panel-note", {}, "Forks at ", this._point, "; move the slider to choose another point."), h("div.block", {}, h("h3", {}, "Branches"), this._tree), this._compare, h("div.block.buttons", {}, this._fork));
    root.append(this._content, this._empty);
  }

  open(threadId) {
    this._threadId = threadId;
    this._compare.hidden = true;
    this._print = null;
    replace(this._tree);
    this.load();
  }

  async load() {
    if (!this._threadId) return;
    const threadId = this._threadId;
    this.showPoint();
    try {
      const { branches } = await get(this._path());
      if (threadId !== this._threadId) return;
      this._show(true);
      // Drawn only when something changed: a button that is replaced while it is pressed is never clicked.
      const print = JSON.stringify(branches);
      if (print === this._print) return;
      this._print = print;
      this._branches = branches;
      replace(this._tree, this._children(null));
      this._actions.loaded(branches);
    } catch (error) {
      if (threadId !== this._threadId) return;
      this._problem.textContent = error.message;
      this._show(false);
    }
  }

  /** Shows at which event a new branch forks. */
  showPoint() {
    this._point.textContent = `event ${this._actions.point()}`;
  }

  _path(rest = "") {
    return `contexts/${encodeURIComponent(this._threadId)}/branches${rest}`;
  }

  _show(isServed) {
    this._content.hidden = !isServed;
    this._empty.hidden = isServed;
  }

  _children(parent) {
    const found = this._branches.filter((branch) => (branch.parent ?? null) === parent);
    return found.length ? h("div.branch-tree", {}, found.map((branch) => [this._row(branch), this._children(branch.name)])) : null;
  }

  _row(branch) {
    const active = this._branches.find((one) => one.is_active);
    return h(
      "div.branch", { class: branch.is_active ? "is-active" : "", "data-branch": branch.name },
      icon("branch"), h("span.name", {}, branch.name),
      h("span.muted", {}, branch.parent ? `from #${branch.forked_at}, tip #${branch.tip_sequence}` : `tip #${branch.tip_sequence}`),
      h(
        "div.buttons", {},
        branch.is_active ? h("span.tag.is-live-tag", {}, "active") : h("button.link", { type: "button", onclick: () => this._switch(branch.name) }, "Switch"),
        !branch.is_active && active && h("button.link", { type: "button", onclick: () => this._compareWith(active.name, branch.name) }, "Compare"),
        !branch.is_active && branch.parent && h("button.link", { type: "button", "aria-label": `Delete ${branch.name}`, onclick: () => this._delete(branch.name) }, icon("close")),
      ),
    );
  }

  async _create() {
    const name = this._name.value.trim();
    if (!name) return this._name.focus();
    await this._do({ method: "POST", json: { name, at_sequence: this._actions.point() } });
    this._name.value = "";
  }

  async _switch(name) {
    await this._do({ method: "PUT", json: { name } }, "/active");
    this._actions.switched();
  }

  /** Creates a branch at an event and makes it the active one. Returns whether it did. */
  async createAndSwitch(sequence) {
    try {
      const taken = new Set((await get(this._path())).branches.map((branch) => branch.name));
      let name = `from ${sequence}`;
      for (let number = 2; taken.has(name); number++) name = `from ${sequence}, ${number}`;
      await request(this._path(), { method: "POST", json: { name, at_sequence: sequence } });
      await request(this._path("/active"), { method: "PUT", json: { name } });
    } catch (error) {
      this._actions.failed(error);
      return false;
    } finally {
      await this.load();
    }
    this._actions.switched();
    return true;
  }

  _delete(name) {
    return this._do({ method: "DELETE" }, `/${encodeURIComponent(name)}`);
  }

  async _do(options, rest = "") {
    try {
      await request(this._path(rest), options);
    } catch (error) {
      this._actions.failed(error);
    }
    await this.load();
  }

  async _compareWith(one, other) {
    try {
      const [here, there] = await Promise.all([one, other].map((name) => get(this._path(`/${encodeURIComponent(name)}/state`))));
      this._compare.hidden = false;
      replace(this._compare, h("h3", {}, "State: ", h("code", {}, one), " → ", h("code", {}, other)), diffView(difference(here.state, there.state)), await this._messages(one, other));
    } catch (error) {
      this._actions.failed(error);
    }
  }

  async _messages(one, other) {
    const [here, there] = await Promise.all([one, other].map((branch) => get(`contexts/${encodeURIComponent(this._threadId)}/messages`, { branch, limit: 500 })));
    const known = new Set(here.messages.map((message) => message.id));
    const ofOther = new Set(there.messages.map((message) => message.id));
    const said = (messages) => messages.filter(textOf);
    const side = (name, messages) => h("div", {}, h("div.label", {}, `Only in ${name}`), messages.length ? messages.slice(-10).map((message) => h("p.entry-text", {}, h("strong", {}, `${message.role}: `), textOf(message))) : h("p.empty-line", {}, "nothing"));
    return h("div.block.compare", {}, side(one, said(here.messages.filter((message) => !ofOther.has(message.id)))), side(other, said(there.messages.filter((message) => !known.has(message.id)))));
  }
}

function textOf(message) {
  const parts = Array.isArray(message.content) ? message.content : [];
  return parts.map((part) => part.text ?? "").join("").slice(0, 300);
}
