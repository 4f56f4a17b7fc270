// Deep links: `#/thread/<id>?event=…&version=…&run=…&at=…&tab=…&key=…&find=…`, `#/runs`, and `#/user/<app>/<user>`.

/** The place that a hash names. */
export function parse(hash) {
  const [path, search = ""] = hash.replace(/^#\/?/, "").split("?");
  const [kind, id, user] = path.split("/").map(decoded);
  const query = new URLSearchParams(search);
  const whole = (name) => (/^\d+$/.test(query.get(name) ?? "") ? Number(query.get(name)) : null);
  return {
    page: kind === "runs" || (kind === "user" && id && user) ? kind : null,
    app: kind === "user" && id ? id : null,
    user: kind === "user" && user ? user : null,
    threadId: kind === "thread" && id ? id : null,
    event: whole("event"),
    version: whole("version"),
    at: whole("at"),
    run: query.get("run"),
    tab: query.get("tab"),
    key: query.get("key"),
    find: query.get("find"),
  };
}

/** A part of a path; one that is not valid percent-encoding is taken as it is. */
function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

/** The hash of a place. */
export function format(place) {
  if (place.page === "user") return `#/user/${encodeURIComponent(place.app)}/${encodeURIComponent(place.user)}`;
  if (place.page) return `#/${place.page}`;
  if (!place.threadId) return "#/";
  const query = new URLSearchParams();
  for (const name of ["event", "version", "at", "run", "tab", "key", "find"]) {
    if (place[name] !== null && place[name] !== undefined) query.set(name, place[name]);
  }
  const search = query.toString();
  return `#/thread/${encodeURIComponent(place.threadId)}${search ? `?${search}` : ""}`;
}

/** Changes the address; small steps within a thread replace the history entry instead of adding one. */
export function go(place, { quietly = false } = {}) {
  const hash = format(place);
  if (hash === location.hash) return;
  if (quietly) history.replaceState(null, "", hash);
  else location.hash = hash;
}
