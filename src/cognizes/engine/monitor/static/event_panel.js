// One event: what it changed, as it is stored, and as AG-UI frames, side by side; copy as curl.

import { get, thread, url } from "./api.js";
import { copyButton } from "./clipboard.js";
import { diffView } from "./diff.js";
import { h, icon, replace } from "./dom.js";
import { exact } from "./format.js";
import { valueView } from "./value_tree.js";

export class EventPanel {
  /** `actions`: travel(sequence), openRun(id), fork(sequence), say(text). */
  constructor(root, actions) {
    this._root = root;
    this._actions = actions;
    this.clear();
  }

  clear() {
    this._shown = null;
    replace(this._root, h("div.empty", {}, icon("search"), h("h2", {}, "No event selected"), h("p", {}, "Click a row of the timeline, or walk through it with the arrow keys.")));
  }

  async show(threadId, sequence, key) {
    const shown = (this._shown = `${threadId}/${sequence}`);
    try {
      const [{ event, frames, agui }, diff] = await Promise.all([get(thread(threadId, `/events/${sequence}`)), get(thread(threadId, `/events/${sequence}/diff`))]);
      if (this._shown !== shown) return;
      this._draw(threadId, event, frames, agui, diff, key);
    } catch (error) {
      if (this._shown === shown) replace(this._root, h("p.empty-line.is-error", {}, error.message));
    }
  }

  _draw(threadId, event, frames, agui, diff, key) {
    const hasDiff = [diff.added, diff.changed, diff.removed].some((part) => Object.keys(part).length) || event.actions?.state_delta;
    const diffPart = hasDiff && h("section.block", { id: "event-diff" }, h("h3", {}, "State changes"), diffView(diff));
    replace(
      this._root,
      h(
        "header.event-head", {},
        h("div", {}, h("h2", {}, `Event ${event.sequence_num}`), h("code.kind", {}, event.event_type)),
        h("div.buttons", {}, h("button", { type: "button", onclick: () => this._actions.travel(event.sequence_num) }, icon("clock"), "State here"), h("button", { type: "button", onclick: () => this._actions.fork(event.sequence_num) }, icon("branch"), "Fork here")),
      ),
      facts([
        ["author", event.author],
        ["time", exact(event.created_at)],
        ["version", String(event.version)],
        ["run", event.run_id && h("button.link", { type: "button", onclick: () => this._actions.openRun(event.run_id) }, event.run_id)],
        ["invocation", event.invocation_id],
        ["id", event.id],
      ]),
      diffPart,
      h(
        "div.side-by-side", {},
        h("section.block", { id: "event-raw" }, blockHead("Raw event", () => JSON.stringify(event, null, 2)), valueView(event, { open: 2 })),
        this._frames(frames, agui),
      ),
      h("section.block", {}, blockHead("As curl", () => curl(threadId, event.sequence_num)), h("pre.curl", { id: "event-curl" }, curl(threadId, event.sequence_num))),
    );
    if (key) diffPart?.scrollIntoView({ block: "nearest" });
  }

  _frames(frames, agui) {
    const body = h("div.frames");
    const show = (list) => replace(body, list.length ? list.map(frameView) : h("p.empty-line", {}, "No frames: clients do not receive this event."));
    const tabs = h("div.segmented", { role: "group", "aria-label": "Profile" });
    const choose = (name, list) => {
      const button = h("button", { type: "button", "aria-pressed": "false" }, name);
      button.addEventListener("click", () => {
        for (const one of tabs.children) one.setAttribute("aria-pressed", String(one === button));
        show(list);
      });
      return button;
    };
    tabs.append(choose("monitor", frames), choose("ag-ui", agui));
    tabs.firstChild.setAttribute("aria-pressed", "true");
    show(frames);
    return h("section.block", { id: "event-frames" }, h("div.block-head", {}, h("h3", {}, "AG-UI frames"), tabs), body);
  }
}

function frameView(frame) {
  const { type, runId, timestamp, ...data } = frame;
  return h("div.frame", {}, h("code.frame-type", {}, type), valueView(data, { open: 1 }));
}

function blockHead(title, text) {
  return h("div.block-head", {}, h("h3", {}, title), copyButton(`Copy ${title.toLowerCase()}`, text));
}

/** The request that reads an event, for a shell. */
export function curl(threadId, sequence) {
  return `curl -s '${url(thread(threadId, `/events/${sequence}`))}'`;
}

export function facts(rows) {
  return h("dl.facts", {}, rows.filter(([, value]) => value).map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
}
