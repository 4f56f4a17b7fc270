// The chat with a hosted agent. The run belongs to the server, and its messages arrive as events, so a reload loses nothing.

import { get, post, request, startRun, thread as threadPath } from "./api.js";
import { PendingFiles } from "./attachments.js";
import { h, icon } from "./dom.js";
import { newId } from "./format.js";

const MOST_DRAFTS = 50;

export class Chat {
  /** `actions`: failed(error), sending() before a message is sent. A message whose run failed can be sent again. */
  constructor(root, actions) {
    this._root = root;
    this._actions = actions;
    this._drafts = new Map();
    this._thread = null;
    this._input = h("textarea", { id: "chat-input", rows: "1", placeholder: "Message the agent", "aria-label": "Message" });
    this._send = h("button.primary.send", { type: "submit", "aria-label": "Send" }, icon("send"));
    this._stop = h("button.danger.stop", { type: "button", hidden: true, "aria-label": "Stop" }, icon("stop"), "Stop");
    this._chooser = h("input", { type: "file", multiple: true, hidden: true, "aria-label": "Files" });
    this._attach = h("button.attach", { type: "button", "aria-label": "Attach files", title: "Attach files", onclick: () => this._chooser.click() }, icon("clip"));
    this._files = new PendingFiles({ upload: (file) => this._upload(file), changed: () => this._enable(), failed: (error) => actions.failed(error) });
    this._form = h("form.chat-form", {}, this._chooser, this._attach, this._input, this._stop, this._send);
    this._again = h("button", { type: "button", id: "send-again", onclick: () => this._sendAgain() }, icon("send"), "Send again");
    this._failure = h("div.chat-failure", { hidden: true }, icon("warn"), h("span", {}, "The run failed."), this._again);
    root.append(this._failure, this._files.element, this._form);
    this._chooser.addEventListener("change", () => (this._files.add(this._chooser.files), (this._chooser.value = "")));
    root.addEventListener("dragover", (event) => event.preventDefault());
    root.addEventListener("drop", (event) => (event.preventDefault(), this._files.add(event.dataTransfer.files)));
    this._input.addEventListener("paste", (event) => {
      if (!event.clipboardData.files.length) return;
      event.preventDefault();
      this._files.add(event.clipboardData.files);
    });
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

  /** Shows the box for a thread of a hosted agent, with the draft of that thread; null hides it. */
  open(summary) {
    if (summary && this._thread?.thread_id === summary.thread_id) return;
    if (this._thread) this._keepDraft(this._thread, this._input.value);
    this._thread = summary;
    this._input.value = (summary && this._drafts.get(summary.thread_id)) ?? "";
    this._root.hidden = !summary;
    this._grow();
    this._files.clear();
    if (summary) this._input.placeholder = `Message ${summary.app_name}`;
    this.setRunning(false);
    this.setFailed(null);
  }

  /** Keeps what is typed for a thread until the thread is opened again. */
  _keepDraft({ thread_id: id }, text) {
    this._drafts.delete(id);
    if (text) this._drafts.set(id, text);
    if (this._drafts.size > MOST_DRAFTS) this._drafts.delete(this._drafts.keys().next().value);
  }

  /** Moves what was typed for a thread to another one that is not open yet. */
  moveDraft(from, to) {
    this._keepDraft({ thread_id: to }, this._drafts.get(from));
    this._drafts.delete(from);
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
    this._isRunning = isRunning;
    this._stop.hidden = !isRunning;
    this._enable();
  }

  /** Offers to send the message of a failed run again; `content` is null when the newest run did not fail, or has none. */
  setFailed(content) {
    this._failed = content;
    this._failure.hidden = content === null;
  }

  async _sendAgain() {
    if (this._failed && !this._send.disabled) await this._say(this._thread, this._failed);
  }

  _enable() {
    this._send.disabled = this._isRunning || this._files.isUploading;
  }

  /** Stores a file in the thread, which the upload creates if it is new. */
  async _upload(file) {
    const { app_name: agent, session_id: id, user_id: user } = this._thread;
    const path = `agui/${encodeURIComponent(agent)}/threads/${encodeURIComponent(id)}/attachments`;
    const headers = { "X-User-ID": user, "Content-Type": file.type || "application/octet-stream" };
    return (await request(path, { method: "POST", query: { filename: file.name }, body: file, headers, timeoutMs: 0 })).json();
  }

  async _submit() {
    const text = this._input.value.trim();
    if ((!text && this._files.isEmpty) || !this._thread || this._send.disabled) return;
    const thread = this._thread;
    const parts = this._files.parts;
    const files = this._files.take();
    this._input.value = "";
    this._grow();
    const content = parts.length ? [...(text ? [{ type: "text", text }] : []), ...parts] : text;
    if (await this._say(thread, content)) return;
    if (this._thread?.thread_id === thread.thread_id) {
      if (!this._input.value) this._input.value = text;
      this._grow();
      if (this._files.isEmpty) this._files.restore(files);
    } else if (!this._drafts.has(thread.thread_id)) this._keepDraft(thread, text);
  }

  /** Sends a message, and returns whether the server took it. */
  async _say(thread, content) {
    const failed = this._failed;
    this._actions.sending();
    this.setFailed(null);
    this.setRunning(true);
    try {
      await requireThread(thread);
      await startRun(thread, {
        // A message in place of an answer withdraws the questions of a waiting run.
        forwardedProps: { cognizes: { onBusy: "cancel" } },
        messages: [{ id: newId(), role: "user", content }],
      });
      return true;
    } catch (error) {
      if (this._thread?.thread_id === thread.thread_id) {
        this.setRunning(false);
        this.setFailed(failed);
      }
      this._actions.failed(error);
      return false;
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
    if (!this._input.scrollHeight) return; // hidden
    this._input.style.height = `${Math.min(this._input.scrollHeight, 160)}px`;
  }
}

/** A message to a thread that was deleted in another window would begin a new one that this page does not show. */
async function requireThread(thread) {
  try {
    await get(threadPath(thread.thread_id));
  } catch (error) {
    throw error.status === 404 ? new Error("This thread was deleted. Start a new conversation.") : error;
  }
}
