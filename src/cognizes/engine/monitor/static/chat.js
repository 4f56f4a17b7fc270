// Talking to a hosted agent. The run belongs to the server: what it says arrives like everything else, so a reload in
// the middle loses nothing.

import { post, request } from "./api.js";
import { h, icon } from "./dom.js";

export class Chat {
  /** `actions`: failed(error), sending() before a message is sent. */
  constructor(root, actions) {
    this._root = root;
    this._actions = actions;
    this._input = h("textarea", { id: "chat-input", rows: "1", placeholder: "Message the agent", "aria-label": "Message" });
    this._send = h("button.primary.send", { type: "submit", "aria-label": "Send" }, icon("send"));
    this._stop = h("button.danger.stop", { type: "button", hidden: true, "aria-label": "Stop" }, icon("stop"), "Stop");
    this._form = h("form.chat-form", {}, this._input, this._stop, this._send);
    root.append(this._form);
    this._form.addEventListener("submit", (event) => (event.preventDefault(), this._submit()));
    this._stop.addEventListener("click", () => this._cancel());
    this._input.addEventListener("input", () => this._grow());
    this._input.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        this._submit();
      }
    });
  }

  /** Shows the box for a thread of a hosted agent; null hides it. */
  open(summary) {
    this._thread = summary;
    this._root.hidden = !summary;
    if (summary) this._input.placeholder = `Message ${summary.app_name}`;
    this.setRunning(false);
  }

  /** Puts a text into the box, ready to be sent or changed. */
  propose(text) {
    this._input.value = text;
    this._grow();
    this._input.focus();
  }

  focus() {
    this._input.focus();
  }

  setRunning(isRunning) {
    this._stop.hidden = !isRunning;
    this._send.disabled = isRunning;
  }

  async _submit() {
    const text = this._input.value.trim();
    if (!text || !this._thread || this._send.disabled) return;
    const thread = this._thread;
    this._input.value = "";
    this._grow();
    this._actions.sending();
    this.setRunning(true);
    try {
      const response = await request(`agui/${encodeURIComponent(thread.app_name)}`, {
        method: "POST",
        headers: { "X-User-ID": thread.user_id, Accept: "text/event-stream" },
        json: {
          threadId: thread.session_id, runId: crypto.randomUUID(), state: {}, tools: [], context: [],
          // A message in place of an answer withdraws the questions of a waiting run.
          forwardedProps: { cognizes: { onBusy: "cancel" } },
          messages: [{ id: crypto.randomUUID(), role: "user", content: text }],
        },
      });
      // The run belongs to the server, and signals announce its messages. This stream is not needed.
      await response.body.cancel();
    } catch (error) {
      if (!this._input.value) this._input.value = text;
      this.setRunning(false);
      this._actions.failed(error);
    }
  }

  async _cancel() {
    try {
      await post(`agui/${encodeURIComponent(this._thread.app_name)}/cancel`, { threadId: this._thread.session_id }, { headers: { "X-User-ID": this._thread.user_id } });
    } catch (error) {
      this._actions.failed(error);
    }
  }

  _grow() {
    this._input.style.height = "auto";
    this._input.style.height = `${Math.min(this._input.scrollHeight, 160)}px`;
  }
}
