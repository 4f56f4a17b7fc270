// Talking to the server: with a key if there is one, and errors in the server's own words.

const KEY = "cognizes.key";
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

export class ApiError extends Error {
  constructor(status, problem) {
    super(problem?.detail ?? problem?.title ?? `The server answered ${status}.`);
    this.status = status;
  }
}

/** A request; the answer as it came. `body` is sent as it is, `json` as JSON. */
export async function request(path, { method = "GET", query, json, body, headers, signal } = {}) {
  const response = await fetch(url(path, query), {
    method,
    signal,
    headers: { ...authorization(), ...(json === undefined ? {} : { "Content-Type": "application/json" }), ...headers },
    body: json === undefined ? body : JSON.stringify(json),
  });
  if (response.status === 401) asking.dispatchEvent(new Event("needed"));
  if (!response.ok) throw new ApiError(response.status, await response.json().catch(() => null));
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
