// Times, sizes and names as people read them.

const TIME = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });
const DAY = new Intl.DateTimeFormat(undefined, { month: "short", day: "numeric" });

/** "12:03:11". */
export function clock(moment) {
  return moment ? TIME.format(new Date(moment)) : "";
}

/** With the day and the milliseconds, for titles and details. */
export function exact(moment) {
  return moment ? new Date(moment).toISOString().replace("T", " ").replace("Z", " UTC") : "–";
}

/** "now", "4 min", "3 h", "12 Mar". */
export function ago(moment, now = Date.now()) {
  const seconds = (now - new Date(moment).getTime()) / 1000;
  if (seconds < 10) return "now";
  if (seconds < 60) return `${Math.floor(seconds)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h`;
  return DAY.format(new Date(moment));
}

/** "12:03:11" today, with the day before today. */
export function since(moment) {
  const day = new Date(moment);
  return day.toDateString() === new Date().toDateString() ? clock(moment) : `${DAY.format(day)} ${clock(moment)}`;
}

/** "38 ms", "1.2 s", "3 min 4 s", "2 h 5 min", "3 d 2 h". */
export function duration(ms) {
  if (ms === null || ms === undefined || Number.isNaN(ms)) return "–";
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 60_000) return `${(ms / 1000).toFixed(1)} s`;
  const seconds = Math.floor(ms / 1000);
  if (seconds < 3600) return inTwo(seconds, 60, "min", 1, "s");
  if (seconds < 86_400) return inTwo(seconds, 3600, "h", 60, "min");
  return inTwo(seconds, 86_400, "d", 3600, "h");
}

function inTwo(seconds, large, name, small, rest) {
  const left = Math.floor((seconds % large) / small);
  return `${Math.floor(seconds / large)} ${name}${left ? ` ${left} ${rest}` : ""}`;
}

/** Attributes of an element that `showGrowing` keeps at the time since a moment: what is not over grows. */
export function growing(from) {
  return from ? { "data-since": from } : {};
}

/** Updates the durations that grow. */
export function showGrowing(root = document) {
  for (const element of root.querySelectorAll("[data-since]")) element.textContent = duration(between(element.dataset.since, new Date()));
}

/** The milliseconds between two moments, or null. */
export function between(from, to) {
  return from && to ? new Date(to) - new Date(from) : null;
}

/** "5.0 MB". */
export function bytes(size) {
  if (size < 1000) return `${size} B`;
  if (size < 1e6) return `${(size / 1e3).toFixed(1)} kB`;
  return `${(size / 1e6).toFixed(1)} MB`;
}

/** "18 400". */
export function number(value) {
  return value.toLocaleString("en").replaceAll(",", "\u202f");
}

/** "1 event", "18 400 events". */
export function counted(count, name) {
  return `${number(count)} ${count === 1 ? name : `${name}s`}`;
}

/** What a run waits for, by the kind of its wait. */
export const WAITS = { human: "a person", webhook: "a webhook", timer: "the clock", signal: "a signal", message: "the user" };

/** "0.0042": the cost of model calls, in the unit of the prices. */
export function cost(value) {
  return value.toFixed(4);
}

export const COST_UNIT = "In the currency of the prices that the server has (COGNIZES_PRICES)";

/** "1 200 in, 34 out": the tokens of model calls. */
export function tokens(usage) {
  return `${number(usage.input_tokens)} in, ${number(usage.output_tokens)} out`;
}

/** The last characters of an id: those differ, the first of a UUIDv7 are the time. */
export function shortId(id) {
  return id.length > 14 ? `…${id.slice(-8)}` : id;
}

/** A new random UUID; `crypto.randomUUID` exists on secure pages only. */
export function newId() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  bytes[6] = (bytes[6] & 0x0f) | 0x40;
  bytes[8] = (bytes[8] & 0x3f) | 0x80;
  const text = Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
  return text.replace(/^(.{8})(.{4})(.{4})(.{4})/, "$1-$2-$3-$4-");
}

const SECRET = /pass(word|wd|phrase)?$|passwd|secret|token(?!s)|api[-_]?key|private[-_]?key|credential|authorization|cookie/i;

/** Whether the name of a key marks its value as secret. */
export function isSecret(key) {
  return SECRET.test(key);
}

/** The name under which the value of a key is masked. The `value` of a JSON patch has the name of its path. */
export function nameOf(container, key) {
  if (key !== "value" || typeof container.path !== "string") return key;
  return container.path.split("/").find(isSecret) ?? key;
}

/** The arguments of a tool call. Some frameworks store them as the JSON text that the model wrote. */
export function argumentsOf(value) {
  if (typeof value !== "string" || !value.trimStart().startsWith("{")) return value;
  try {
    return JSON.parse(value);
  } catch {
    return value;
  }
}

/** One line of a value, for chips and folded rows. */
export function summary(value, longest = 60) {
  const text = line(value, longest);
  return text.length > longest ? `${text.slice(0, longest - 1)}…` : text;
}

function line(value, room) {
  if (typeof value === "string") return JSON.stringify(value.length > room ? value.slice(0, room) : value);
  if (value === null || typeof value !== "object") return String(value);
  if (value.$cut) return `${value.$cut} of ${number(value.length)}`;
  const isList = Array.isArray(value);
  const parts = [];
  let used = 0;
  for (const [key, item] of Object.entries(value)) {
    if (used > room) break;
    const part = isList ? line(item, room - used) : `${key}: ${isSecret(nameOf(value, key)) ? "••••" : line(item, room - used)}`;
    parts.push(part);
    used += part.length;
  }
  return isList ? `[${parts.join(", ")}]` : `{${parts.join(", ")}}`;
}

/** The reason of a wait in words for a person; null for ADK's instruction to programs. */
export function reasonOf(text) {
  return text && !text.includes("FunctionResponse") ? text : null;
}

/** The name of a thread: its title, else its first message. New messages do not change it. */
export function titleOf(thread) {
  return thread.title || thread.first_message || "New conversation";
}
