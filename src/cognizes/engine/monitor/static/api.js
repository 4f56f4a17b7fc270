// Requests to the server, with a key if there is one. Errors have the message of the server, or say why there is none.

import { newId } from "./format.js";

const KEY = "cognizes.key";
const TIMEOUT_MS = 60_000;
const asking = new EventTarget();

/** Called when the server wants a key. */
export function onSignInNeeded(listener) {
  asking.addEventListener("needed", listener);
}

export function savedKey() {
  return sessionStorage.getItem(KEY) ?? "";
}

export function saveKey(key) {
  if (key) sessionStorage.setItem(KEY, key);
  else sessionStorage.removeItem(KEY);
}

/** A URL below the page's own. */
export function url(path, query = {}) {
  const found = new URL(path.replace(/^\//, ""), document.baseURI.split("#")[0]);
  for (const [name, value] of Object.entries(query)) {
    if (value === undefined || value === null || value === "") continue;
    for (const one of Array.isArray(value) ? value : [value]) found.searchParams.append(name, String(one));
  }
  return found.href;
}

export function authorization() {
  const key = savedKey();
  return key ? { Authorization: `Bearer ${key}` } : {};
}

/** An error of a request; `status` is 0 if there is no answer. `isExplained` says that the answer is the server's, not a proxy's. */
export class ApiError extends Error {
  constructor(status, message, isExplained = false) {
    super(message);
    this.status = status;
    this.isMissing = status === 404 && isExplained;
  }

  /** Whether the same request may succeed later. */
  get isTemporary() {
    return this.status === 0 || this.status === 429 || this.status >= 502;
  }
}

/** A request; the answer as it came. `body` is sent as it is, `json` as JSON. A `timeoutMs` of 0 is none. */
export async function request(path, { method = "GET", query, json, body, headers, timeoutMs = TIMEOUT_MS } = {}) {
  let response;
  try {
    response = await fetch(url(path, query), {
      method,
      signal: timeoutMs ? AbortSignal.timeout(timeoutMs) : undefined,
      headers: { ...authorization(), ...(json === undefined ? {} : { "Content-Type": "application/json" }), ...headers },
      body: json === undefined ? body : JSON.stringify(json),
    });
  } catch (error) {
    const isLate = error.name === "TimeoutError";
    throw new ApiError(0, isLate ? `The server did not answer within ${timeoutMs / 1000} s.` : "The server cannot be reached. Is it running, and is this device online?");
  }
  if (response.status === 401) asking.dispatchEvent(new Event("needed"));
  if (!response.ok) {
    const problem = await response.json().catch(() => null);
    const reason = problem?.detail ?? problem?.title;
    throw new ApiError(response.status, reason ?? `The server answered ${response.status}.`, reason !== undefined);
  }
  return response;
}

/** A request; the answer as JSON. */
export async function get(path, query, options) {
  return (await request(path, { query, ...options })).json();
}

export async function post(path, json, options) {
  const response = await request(path, { method: "POST", json, ...options });
  return response.status === 204 ? null : response.json();
}

/** A URL for EventSource or WebSocket, which carry no headers: with a ticket for it when there is a key. */
export async function ticketed(address) {
  if (!savedKey()) return address;
  const { ticket } = await post("api/access/tickets", {});
  const found = new URL(address);
  found.searchParams.set("ticket", ticket);
  return found.href;
}

export const thread = (id, rest = "") => `api/debug/threads/${encodeURIComponent(id)}${rest}`;

/** Starts a run of the agent of a thread. `input` has the messages or the answers that it gets. */
export async function startRun(one, input) {
  const response = await request(`agui/${encodeURIComponent(one.app_name)}`, {
    method: "POST",
    headers: { "X-User-ID": one.user_id, Accept: "text/event-stream" },
    timeoutMs: 0,
    json: { threadId: one.session_id, runId: newId(), state: {}, messages: [], tools: [], context: [], forwardedProps: {}, ...input },
  });
  // The run belongs to the server, and signals announce its messages. This stream is not needed.
  await response.body.cancel();
}
