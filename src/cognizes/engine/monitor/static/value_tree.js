// JSON as a tree: folded, lazily opened, long lists in pieces, long texts in pieces, secrets masked.

import { h, icon, replace } from "./dom.js";
import { bytes, isSecret, nameOf, number, summary } from "./format.js";

const PIECE = 100;
const SHOWN_TEXT = 240;
const TEXT_PIECE = 100_000;

/**
 * A value. `options.loadWhole()` fetches the value uncut; `options.name` is its key, for masking.
 * `options.open` is how many levels are unfolded at first.
 */
export function valueView(value, options = {}) {
  if (options.name !== undefined && isSecret(options.name) && value !== null && value !== "") return masked(value, options);
  if (isCut(value)) return cut(value, options);
  if (typeof value === "string") return text(value);
  if (value === null || typeof value !== "object") return h("span.v", { class: `v-${value === null ? "null" : typeof value}` }, String(value));
  return container(value, options);
}

export function isCut(value) {
  return value !== null && typeof value === "object" && !Array.isArray(value) && typeof value.$cut === "string" && "length" in value && Object.keys(value).every((key) => ["$cut", "length", "preview", "role"].includes(key));
}

function masked(value, options) {
  const holder = h("span.v.v-masked", {}, "••••••••");
  const reveal = h("button.link", { type: "button", "aria-label": `Reveal ${options.name}`, title: "Reveal" }, icon("eye"));
  reveal.addEventListener("click", (event) => {
    event.stopPropagation();
    replace(holder, valueView(value, { ...options, name: undefined }));
    reveal.remove();
  });
  return h("span.v-line", {}, holder, reveal);
}

function cut(value, options) {
  const what = value.$cut === "text" ? bytes(value.length) : `${number(value.length)} ${value.$cut === "list" ? "items" : value.preview === undefined && value.length > 2000 ? "bytes" : "entries"}`;
  const holder = h("span.v.v-cut");
  if (value.preview !== undefined) holder.append(h("span.v-string", {}, `"${value.preview}…`));
  const label = `Show all (${what})`;
  if (!options.loadWhole) return append2(holder, h("span.muted", {}, ` ${what}`));
  const button = h("button.more", { type: "button" }, label);
  button.addEventListener("click", async (event) => {
    event.stopPropagation();
    button.disabled = true;
    button.textContent = "Loading…";
    try {
      const whole = await options.loadWhole();
      holder.replaceWith(valueView(whole, { ...options, loadWhole: undefined, open: 1 }));
    } catch (error) {
      button.disabled = false;
      button.textContent = `${label}: ${error.message}`;
    }
  });
  return append2(holder, button);
}

function append2(holder, node) {
  holder.append(" ", node);
  return holder;
}

/** A text; a long one in pieces, so that five megabytes never become one layout. */
export function text(value, { quote = true, shown: first = SHOWN_TEXT } = {}) {
  const mark = quote ? '"' : "";
  if (value.length <= first) return h("span.v.v-string", {}, `${mark}${value}${mark}`);
  const holder = h("span.v.v-string", {}, `${mark}${value.slice(0, first)}`);
  let shown = first;
  const button = h("button.more", { type: "button" });
  const label = () => (shown === first && value.length <= TEXT_PIECE ? `Show all (${bytes(value.length)})` : `Show more (${bytes(shown)} of ${bytes(value.length)})`);
  button.textContent = label();
  button.addEventListener("click", (event) => {
    event.stopPropagation();
    holder.append(value.slice(shown, shown + TEXT_PIECE));
    shown = Math.min(value.length, shown + TEXT_PIECE);
    if (shown < value.length) button.textContent = label();
    else {
      holder.append(mark);
      button.remove();
    }
  });
  return h("span.v-text", {}, holder, "… ", button);
}

function container(value, options) {
  const isList = Array.isArray(value);
  // An object that is cut in the middle has the mark among its keys.
  const isPart = !isList && value.$cut === "object" && options.loadWhole;
  const entries = Object.entries(value).filter(([key]) => !isPart || (key !== "$cut" && key !== "length"));
  if (!entries.length) return h("span.v.muted", {}, isList ? "[]" : "{}");
  const open = options.open ?? 0;
  const body = h("div.tree", { hidden: open > 0 ? undefined : true, role: "group" });
  const preview = h("span.v.v-preview", {}, summary(value, 72));
  const toggle = h("button.fold", { type: "button", "aria-expanded": String(open > 0) }, icon("caret"), preview);
  let filled = false;
  const unfold = () => {
    if (!filled) {
      filled = true;
      piece(body, entries, 0, value, { ...options, open: open - 1 });
      if (isPart) body.append(cut({ $cut: "object", length: value.length }, { ...options, loadWhole: options.loadWhole }));
    }
  };
  if (open > 0) unfold();
  toggle.addEventListener("click", (event) => {
    event.stopPropagation();
    unfold();
    body.hidden = !body.hidden;
    toggle.setAttribute("aria-expanded", String(!body.hidden));
  });
  return h("div.v-container", {}, toggle, body);
}

/** The part of a whole value that stands where `item` is. The last item of a cut list stands for the rest of the list. */
function partOf(whole, key, item) {
  const isRest = Array.isArray(whole) && item.$cut === "list" && item.length === whole.length;
  return isRest ? whole.slice(Number(key)) : whole?.[key];
}

function piece(body, entries, from, container, options) {
  const isList = Array.isArray(container);
  const size = entries.length - from <= PIECE * 1.2 ? entries.length : PIECE; // no button for a handful
  for (const [key, item] of entries.slice(from, from + size)) {
    const loadWhole = options.loadWhole && (async () => partOf(await options.loadWhole(), key, item));
    body.append(h("div.tree-row", {}, h("span.k", {}, isList ? `${key}` : key), valueView(item, { ...options, loadWhole, name: isList ? options.name : nameOf(container, key) })));
  }
  const left = entries.length - from - size;
  if (left <= 0) return;
  const more = h("button.more", { type: "button" }, `${number(left)} more`);
  more.addEventListener("click", (event) => {
    event.stopPropagation();
    more.remove();
    piece(body, entries, from + PIECE, container, options);
  });
  body.append(more);
}
