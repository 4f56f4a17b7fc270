// Memory: long-term and episodic entries of this app and user, and a recall with its scores.

import { h, icon, replace } from "./dom.js";

export class MemoryPanel {
  constructor(root, actions) {
    this._root = root;
    this._actions = actions;
  }

  open(threadId, summary) {
    this._summary = summary;
    this._loaded = false;
  }

  async show() {
    replace(this._root, h("div.empty", {}, icon("thought"), h("h2", {}, "No memory yet")));
  }
}
