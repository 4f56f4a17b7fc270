// The pieces of the timeline: bubbles, thoughts, tool cards, state chips.

import { attachmentViews } from "./attachments.js";
import { h, icon, replace } from "./dom.js";
import { between, bytes, clock, duration, exact, isSecret, number, summary } from "./format.js";
import { markdown } from "./markdown.js";
import { isCut, text as longText, valueView } from "./value_tree.js";

const FOLDED_TEXT = 1400;
const MOST_MARKDOWN = 50_000;

/** A row of the timeline, for one thing that an event says. */
export function row(event, kind, ...body) {
  return h(
    "div.row",
    { class: `k-${kind}`, "data-seq": event.sequence_num },
    h("a.gutter", { href: "#", tabindex: "-1", title: `Event ${event.sequence_num}, ${exact(event.created_at)}`, "data-select": event.sequence_num }, h("span.seq", {}, `#${event.sequence_num}`), h("time", {}, clock(event.created_at))),
    h("div.row-body", {}, ...body),
  );
}

/** Something said, with its attachments. `loadWhole` fetches the text when it is cut. */
export function bubble(part, author, threadId, loadWhole) {
  const holder = h("div.bubble", { class: `from-${part.role}` });
  if (part.role !== "user") holder.append(h("div.who", {}, author || part.role));
  if (isCut(part.text)) holder.append(cutText(part.text, loadWhole, (text) => saidView(text, part.role, { isWhole: true })));
  else if (!part.text && part.media?.length) holder.classList.add("is-files");
  else holder.append(saidView(part.text, part.role));
  if (part.media?.length) holder.append(attachmentViews(part.media, threadId));
  if (part.interrupted) holder.append(h("div.note", {}, icon("warn"), "Interrupted: the text is incomplete"));
  return holder;
}

function saidView(text, role, { isWhole = false } = {}) {
  if (text.length > MOST_MARKDOWN) return longText(text, { quote: false });
  if (role === "assistant") return h("div.said", {}, markdown(text));
  return text.length > FOLDED_TEXT && !isWhole ? longText(text, { quote: false }) : h("div.said", {}, text);
}

/** The beginning of a text, and a button that shows the whole text as `show(text)`. */
function cutText(value, loadWhole, show) {
  const holder = h("div.said", {}, `${value.preview ?? ""}… `);
  const label = `Show all (${bytes(value.length)})`;
  const button = h("button.more", { type: "button" }, label);
  button.addEventListener("click", async (event) => {
    event.stopPropagation();
    button.disabled = true;
    try {
      holder.replaceWith(show(String(await loadWhole())));
    } catch (error) {
      button.disabled = false;
      button.textContent = `${label}: ${error.message}`;
    }
  });
  holder.append(button);
  return holder;
}

export function thought(text, loadWhole) {
  const said = isCut(text) ? cutText(text, loadWhole, (whole) => h("div.said", {}, whole)) : h("span", {}, typeof text === "string" ? text : summary(text, 400));
  return h("div.thought", {}, icon("thought"), said);
}

/** A tool call; `finish` shows its result. */
export class ToolCard {
  constructor(part, event, loadWhole) {
    this.event = event;
    this.runId = event.run_id;
    this.hasWaited = false;
    this._status = h("span.tool-status", {}, h("span.spinner", { "aria-hidden": "true" }), "pending");
    this._answer = h("span.tool-answer");
    this._body = h("div.tool-body", { hidden: true }, section("Arguments", part.args, loadWhole));
    const head = h(
      "button.tool-head", { type: "button", "aria-expanded": "false" },
      icon("tool"), h("span.tool-name", {}, part.name),
      h("span.tool-args", {}, Object.keys(part.args ?? {}).length ? summary(part.args, 80) : ""), this._status,
    );
    head.addEventListener("click", (click) => {
      click.stopPropagation();
      this._body.hidden = !this._body.hidden;
      head.setAttribute("aria-expanded", String(!this._body.hidden));
    });
    this.element = h("div.tool.is-pending", { "data-call": part.id }, head, this._answer, this._body);
  }

  finish(part, event, loadWhole) {
    if (part.waiting) {
      this.hasWaited = true;
      replace(this._status, "waits for a person");
      this.element.classList.replace("is-pending", "is-waiting");
      return;
    }
    this.element.classList.remove("is-pending", "is-waiting", "is-abandoned");
    this.element.classList.add(part.isError ? "is-error" : "is-done");
    this._isError = part.isError;
    this.setDuration(between(this.event.created_at, event.created_at));
    replace(this._answer, h("span.arrow", {}, "→ "), summary(part.result, 120));
    this._body.append(section(part.isError ? "Error" : "Result", part.result, loadWhole));
  }

  /** Shows how long the tool took. The time that a person took to answer is not the tool's. */
  setDuration(ms) {
    if (this._isError === undefined) return;
    replace(this._status, icon(this._isError ? "warn" : "check"), this.hasWaited ? "after an answer" : duration(ms));
  }

  /** The run has ended without a result of this tool. */
  abandon() {
    if (this._isError !== undefined || this.element.classList.contains("is-abandoned")) return;
    this.element.classList.remove("is-pending", "is-waiting");
    this.element.classList.add("is-abandoned");
    replace(this._status, "no result");
  }
}

/** A result whose call is not on the page. */
export function orphanResult(part, loadWhole) {
  const body = section("Result", part.result, loadWhole);
  return h("div.tool", { class: part.isError ? "is-error" : "is-done" }, h("div.tool-head", {}, icon("tool"), h("span.tool-name", {}, part.name ?? "result"), h("span.tool-args", {}, summary(part.result, 100))), body);
}

function section(label, value, loadWhole) {
  return h("div.tool-section", {}, h("div.label", {}, label), valueView(value ?? null, { open: 1, loadWhole }));
}

/** What an event wrote into the state. */
export function stateChips(delta, onOpen, onHover) {
  if (delta === null) return h("div.chips", {}, h("button.chip", { type: "button", onclick: onOpen }, "Δ a large change of state"));
  const entries = Object.entries(delta);
  const chips = entries.slice(0, 8).map(([key, value]) => {
    const scope = /^(user|app|temp):/.exec(key)?.[1] ?? "session";
    const gone = value && typeof value === "object" && value.$delete === true;
    const shown = gone ? "deleted" : isSecret(key) ? "••••" : summary(value, 28);
    const chip = h(
      "button.chip", { type: "button", class: `scope-${scope}${gone ? " is-gone" : ""}`, "data-key": key },
      h("span.chip-key", {}, key), h("span.chip-value", {}, shown),
    );
    chip.addEventListener("click", (event) => (event.stopPropagation(), onOpen(key)));
    chip.addEventListener("pointerenter", () => onHover(chip, key));
    chip.addEventListener("pointerleave", () => onHover(null));
    chip.addEventListener("focus", () => chip.matches(":focus-visible") && onHover(chip, key));
    chip.addEventListener("blur", () => onHover(null));
    return chip;
  });
  const left = entries.length - chips.length;
  if (left > 0) chips.push(h("button.chip", { type: "button", onclick: () => onOpen() }, `+${number(left)}`));
  return h("div.chips", {}, h("span.chips-mark", { title: "State written" }, "Δ"), chips);
}
