// Markdown as elements: headings, paragraphs, lists, quotes, code with a copy button, tables, links. The text is never
// markup: syntax that is not known stays text. Every expression is linear or bounded, because a text may be made to hang a page.

import { copyButton } from "./clipboard.js";
import { h } from "./dom.js";

const FENCE = /^ {0,3}(?:(`{3,})([^`]*)|(~{3,})([^]*))$/;
const HEADING = /^ {0,3}(#{1,6})(?=\s)/;
const ITEM = /^( {0,8})([-*+]|\d{1,9}[.)])\s+([^]*)$/;
const QUOTE = /^ {0,3}>\s?([^]*)$/;
const RULE = /^ {0,3}([-*_])(\s*\1){2,}\s*$/;
const TABLE_RULE_CELL = /^:?-+:?$/;
const CODE = "(?<!`)(`{1,3})(?!`)([^]{1,2000}?)(?<!`)\\1(?!`)";
const STRONG = "\\*\\*([^*\\n]+)\\*\\*|__([^_\\n]+)__";
const EMPHASIS = "\\*([^*\\s][^*\\n]*)\\*|(?<![\\w])_([^_\\s][^_\\n]*)_(?![\\w])|~~([^~\\n]+)~~";
const LINK = "\\[([^\\][\\n]{1,500})\\]\\((https?:\\/\\/[^\\s)]{1,2000})\\)|(https?:\\/\\/[^\\s<>()]{1,2000}[^\\s<>().,;:!?'\"])";
const INLINE = new RegExp([CODE, STRONG, EMPHASIS, LINK].join("|"), "g");
const DEEPEST = 6;

/** The elements of a Markdown text. */
export function markdown(text) {
  return h("div.markdown", {}, blocks(text.replaceAll("\r\n", "\n").split("\n"), 0));
}

function blocks(lines, depth) {
  const found = [];
  let place = 0;
  while (place < lines.length) {
    const line = lines[place];
    if (!line.trim()) {
      place++;
      continue;
    }
    const [element, next] = block(lines, place, depth);
    found.push(element);
    place = next;
  }
  return found;
}

/** The block that begins at a line, and the line after it. */
function block(lines, place, depth) {
  const line = lines[place];
  const fence = FENCE.exec(line);
  if (fence) return codeBlock(lines, place, fence);
  const heading = HEADING.exec(line);
  // The page has its own headings: those of a message are paragraphs that look like headings.
  if (heading) return [h("p.md-heading", { "data-level": heading[1].length }, inline(headingText(line.slice(heading[0].length)))), place + 1];
  if (RULE.test(line)) return [h("hr"), place + 1];
  if (depth < DEEPEST && QUOTE.test(line)) {
    const end = endOf(lines, place, (one) => QUOTE.test(one));
    return [h("blockquote", {}, blocks(lines.slice(place, end).map((one) => QUOTE.exec(one)[1]), depth + 1)), end];
  }
  if (depth < DEEPEST && ITEM.test(line)) return list(lines, place, depth);
  if (line.includes("|") && isTableRule(lines[place + 1] ?? "")) return table(lines, place);
  const end = Math.max(place + 1, endOf(lines, place, (one, number) => one.trim() && (number === place || !startsBlock(one))));
  return [h("p", {}, inline(lines.slice(place, end).join("\n"))), end];
}

/** The text of a heading, without the number signs that may close it. */
function headingText(rest) {
  const text = rest.trim();
  let end = text.length;
  while (end > 0 && text[end - 1] === "#") end--;
  return end === 0 || /\s/.test(text[end - 1]) ? text.slice(0, end).trimEnd() : text;
}

function isTableRule(line) {
  return line.includes("|") && cellsOf(line).every((cell) => TABLE_RULE_CELL.test(cell));
}

function cellsOf(line) {
  return line.trim().replace(/^\||\|$/g, "").split(/(?<!\\)\|/).map((cell) => cell.trim().replaceAll("\\|", "|"));
}

function startsBlock(line) {
  return FENCE.test(line) || HEADING.test(line) || QUOTE.test(line) || ITEM.test(line);
}

function endOf(lines, place, belongs) {
  let end = place;
  while (end < lines.length && belongs(lines[end], end)) end++;
  return end;
}

function codeBlock(lines, place, [, ticks, ofTicks, tildes, ofTildes]) {
  const mark = ticks ?? tildes;
  const language = (ofTicks ?? ofTildes).trim().split(/\s/, 1)[0].slice(0, 40);
  const closes = (line) => line.trim().startsWith(mark) && !line.trim().slice(mark.length).replaceAll(mark[0], "");
  const end = endOf(lines, place + 1, (line) => !closes(line));
  const code = lines.slice(place + 1, end).join("\n");
  const button = copyButton("Copy code", () => code);
  return [h("div.md-code", {}, h("div.md-code-head", {}, h("span.muted", {}, language || "text"), button), h("pre", { tabindex: "0" }, h("code", {}, code))), end + 1];
}

/** A list; lines that are indented below an item belong to it. */
function list(lines, place, depth) {
  const [, indent, mark] = ITEM.exec(lines[place]);
  const isOrdered = /\d/.test(mark);
  const items = [];
  while (place < lines.length) {
    const item = ITEM.exec(lines[place]);
    if (!item || item[1].length !== indent.length || /\d/.test(item[2]) !== isOrdered) break;
    const width = indent.length + item[2].length + 1;
    const end = endOf(lines, place + 1, (line, number) => (line.trim() ? indentOf(line) > indent.length : indentOf(lines[number + 1] ?? "") > indent.length));
    const own = [item[3], ...lines.slice(place + 1, end).map((line) => line.slice(Math.min(indentOf(line), width)))];
    const inside = blocks(own, depth + 1);
    // A single paragraph is the item itself.
    items.push(h("li", {}, inside.length && inside[0].tagName === "P" ? [[...inside[0].childNodes], inside.slice(1)] : inside));
    place = end;
  }
  return [h(isOrdered ? "ol" : "ul", isOrdered ? { start: Number.parseInt(mark, 10) } : {}, items), place];
}

function indentOf(line) {
  return line.trim() ? line.length - line.trimStart().length : -1;
}

function table(lines, place) {
  const head = cellsOf(lines[place]);
  const end = endOf(lines, place + 2, (line) => line.includes("|"));
  const rows = lines.slice(place + 2, end).map(cellsOf);
  return [
    h("div.md-table", { tabindex: "0", role: "region", "aria-label": "Table" }, h("table", {}, h("thead", {}, h("tr", {}, head.map((cell) => h("th", { scope: "col" }, inline(cell))))), h("tbody", {}, rows.map((row) => h("tr", {}, head.map((_, column) => h("td", {}, inline(row[column] ?? "")))))))),
    end,
  ];
}

function inline(text) {
  const found = [];
  let from = 0;
  for (const match of text.matchAll(INLINE)) {
    if (match.index > from) found.push(text.slice(from, match.index));
    from = match.index + match[0].length;
    const [, ticks, code, strong, strong2, em, em2, gone, label, href, address] = match;
    if (ticks) found.push(h("code", {}, code.trim()));
    else if (strong ?? strong2) found.push(h("strong", {}, inline(strong ?? strong2)));
    else if (em ?? em2) found.push(h("em", {}, inline(em ?? em2)));
    else if (gone) found.push(h("s", {}, gone));
    else found.push(h("a", { href: href ?? address, rel: "noopener noreferrer", target: "_blank" }, label ?? address));
  }
  if (from < text.length) found.push(text.slice(from));
  return found;
}
