// The slider under the timeline: the thread as it was after any event.

import { h, icon } from "./dom.js";
import { counted, number, since } from "./format.js";

export class TimeTravel {
  /** `travel(sequence | null)` is called when the slider moves, `branch(sequence)` to continue from the past. */
  constructor(root, { travel, describe, branch }) {
    this._travel = travel;
    this._describe = describe;
    this._slider = h("input", { type: "range", id: "time-travel", min: "0", max: "0", value: "0", step: "1", "aria-label": "Time travel: the thread after event" });
    this._label = h("output.travel-label", { for: "time-travel" });
    this._live = h("button.live-button", { type: "button", title: "Back to the present" }, h("span.dot"), "Live");
    this._branch = h("button.branch-here", { type: "button", id: "branch-here", hidden: true, title: "Continue from this event on a branch of its own", onclick: () => branch(this.at) }, icon("branch"), "Branch here and continue");
    root.append(icon("clock"), this._slider, this._label, this._branch, this._live);
    this._slider.addEventListener("input", () => this._onInput());
    this._live.addEventListener("click", () => travel(null));
    this.at = null;
  }

  /** The thread reaches this far. */
  setLast(last) {
    this._slider.max = String(last);
    this._last = last;
    if (this.at === null) this._slider.value = String(last);
    this._show();
  }

  /** Where the slider stands; null is the present. */
  set(at) {
    this.at = at;
    this._slider.value = String(at ?? this._last);
    this._show();
  }

  _onInput() {
    const value = Number(this._slider.value);
    this.at = value >= this._last ? null : value;
    this._show();
    cancelAnimationFrame(this._frame);
    this._frame = requestAnimationFrame(() => this._travel(this.at));
  }

  _show() {
    const isLive = this.at === null;
    this._branch.hidden = isLive || this.at === 0;
    this._live.setAttribute("aria-pressed", String(isLive));
    const event = isLive ? null : this._describe(this.at);
    this._label.textContent = isLive ? counted(this._last ?? 0, "event") : this.at === 0 ? "as created" : `event ${number(this.at)} of ${number(this._last)}${event ? ` · ${since(event.created_at)}` : ""}`;
    const share = this._last ? ((this.at ?? this._last) / this._last) * 100 : 100;
    this._slider.style.setProperty("--share", `${share}%`);
  }
}
