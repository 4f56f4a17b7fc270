// Differences between two JSON values, down to the entry that changed.

import { h } from "./dom.js";
import { isCut, valueView } from "./value_tree.js";

const DEEPEST = 12;
const MOST_ROWS = 200;
const SIGNS = { added: "+", changed: "~", removed: "−" };

/** What differs between two states, by key. */
export function difference(before, after) {
  const pick = (from, keep) => Object.fromEntries(Object.entries(from).filter(([key]) => keep(key)));
  return {
    added: pick(after, (key) => !(key in before)),
    removed: pick(before, (key) => !(key in after)),
    changed: Object.fromEntries(Object.keys(after).filter((key) => key in before && !same(before[key], after[key])).map((key) => [key, [before[key], after[key]]])),
  };
}

/** A difference as rows: what was added, changed and removed. Lists and objects are compared inside. */
export function diffView(diff, { onlyKey } = {}) {
  const changes = [];
  const keep = (key) => onlyKey === undefined || onlyKey === key;
  for (const [key, value] of Object.entries(diff.added)) if (keep(key)) changes.push({ kind: "added", path: key, values: [value] });
  for (const [key, [before, after]] of Object.entries(diff.changed)) if (keep(key)) changes.push(...changesWithin(before, after, key, DEEPEST));
  for (const [key, value] of Object.entries(diff.removed)) if (keep(key)) changes.push({ kind: "removed", path: key, values: [value] });
  if (!changes.length) return h("p.empty-line", {}, "No change: the state already had these values.");
  const left = changes.length - MOST_ROWS;
  return h("div.diff", {}, changes.slice(0, MOST_ROWS).map(diffRow), left > 0 && h("p.empty-line", {}, `${left} more changes`));
}

/** The changes between two values, each with the path of the entry. */
export function changesWithin(before, after, path, depth) {
  if (same(before, after)) return [];
  const whole = [{ kind: "changed", path, values: [before, after] }];
  if (depth === 0 || isCut(before) || isCut(after)) return whole;
  if (Array.isArray(before) && Array.isArray(after)) return changesOfLists(before, after, path, depth);
  if (isObject(before) && isObject(after)) return changesOfObjects(before, after, path, depth);
  return whole;
}

function changesOfObjects(before, after, path, depth) {
  const changes = [];
  for (const [key, value] of Object.entries(after)) {
    const place = `${path}.${key}`;
    if (key in before) changes.push(...changesWithin(before[key], value, place, depth - 1));
    else changes.push({ kind: "added", path: place, values: [value] });
  }
  for (const [key, value] of Object.entries(before)) if (!(key in after)) changes.push({ kind: "removed", path: `${path}.${key}`, values: [value] });
  return changes;
}

/** Entries that are equal at both ends did not change; those between are compared by place. */
function changesOfLists(before, after, path, depth) {
  let start = 0;
  while (start < before.length && start < after.length && same(before[start], after[start])) start++;
  let [oldEnd, newEnd] = [before.length, after.length];
  while (oldEnd > start && newEnd > start && same(before[oldEnd - 1], after[newEnd - 1])) [oldEnd, newEnd] = [oldEnd - 1, newEnd - 1];
  const changes = [];
  for (let place = start; place < Math.max(oldEnd, newEnd); place++) {
    const name = `${path}[${place}]`;
    if (place >= oldEnd) changes.push({ kind: "added", path: name, values: [after[place]] });
    else if (place >= newEnd) changes.push({ kind: "removed", path: name, values: [before[place]] });
    else changes.push(...changesWithin(before[place], after[place], name, depth - 1));
  }
  return changes;
}

function diffRow({ kind, path, values }) {
  const name = path.split(/[:.[]/).findLast((part) => !/^\d+\]$/.test(part));
  const shown = values.map((value) => h("div.diff-value", {}, valueView(value, { name })));
  if (shown.length === 2) shown[0].classList.add("is-old");
  return h("div.diff-row", { class: `is-${kind}` }, h("span.sign", { "aria-label": kind, role: "img" }, SIGNS[kind]), h("span.k", {}, path), h("div.diff-values", {}, shown));
}

function isObject(value) {
  return value !== null && typeof value === "object" && !Array.isArray(value);
}

function same(one, other) {
  return JSON.stringify(one) === JSON.stringify(other);
}
