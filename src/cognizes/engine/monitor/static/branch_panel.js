// Branches of a thread: tree, fork from a point, switch, compare.

import { h, icon, replace } from "./dom.js";

export class BranchPanel {
  constructor(root, actions) {
    this._root = root;
    this._actions = actions;
  }

  open(threadId) {
    this._threadId = threadId;
  }

  async load() {
    replace(this._root, h("div.empty", {}, icon("branch"), h("h2", {}, "One branch: main")));
  }
}
