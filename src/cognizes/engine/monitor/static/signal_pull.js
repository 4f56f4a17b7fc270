// Signal-Pull in a browser: signals say that something is new, REST has the content. No dependencies; copy it.
//
//   const client = new SignalPullClient("", contextId);
//   client.on("content", ({ messageId, text, delta, complete }) => …);
//   client.on("history", ({ branch, messages }) => …);        // what was said before, and after a branch switch
//   client.on("state", ({ state }) => …);
//   client.on("connection", ({ open, reconnecting }) => …);    // show "reconnecting" while it is true
//   client.on("refresh", ({ metadata, reason }) => …);
//   await client.start();
//
// What it promises:
// - a message's text grows in order and without holes: it advances to the last chunk it *received*, never to the number
//   that a signal named, so neither a lost signal nor `has_more` loses text;
// - a pull that fails changes nothing and is tried again with the next signal (and a few times by itself);
// - many signals during one pull become one more pull;
// - at start it reads the metadata and all messages of the active branch (`history: false` leaves them out); a branch
//   that was read before comes from memory, and only what is new is pulled;
// - after a reconnection, metadata and new messages are read and every open message is pulled again; likewise when a
//   heartbeat names a newer event than all signals (signals were lost), and after a read that failed.

/** @typedef {{ sequence: number, delta: string }} Chunk */

const RETRY_MS = 1000;
const PULL_LIMIT = 1000;
const HISTORY_PAGE = 200;
const MAX_IDLE_PULLS = 30; // pulls without a signal and without anything new, before it waits for the next signal
const MAX_COMPLETE_MESSAGES = 200; // finished messages that a client without a history keeps

export class SignalPullClient {
  /**
   * @param {string} base where the server is; "" for the page's own
   * @param {string} contextId the thread's id
   * @param {{ fetch?: typeof fetch, eventSource?: (url: string) => EventSource, retryMs?: number,
   *           prepareUrl?: (url: string) => Promise<string> | string, headers?: () => Record<string, string>,
   *           history?: boolean }} [options]
   *        `prepareUrl` may add a ticket to the URL of the event stream, which cannot carry headers
   */
  constructor(base, contextId, options = {}) {
    this.base = base.replace(/\/$/, "");
    this.contextId = contextId;
    this.state = null;
    this.messages = new Map();
    this.branch = null;
    this.stats = { signals: 0, pulls: 0, failed: 0, gaps: 0, reconnects: 0 };
    this._seen = 0; // the newest event that a signal announced
    this._isStale = false; // whether the last refresh failed
    this._fetch = options.fetch ?? ((...args) => globalThis.fetch(...args));
    this._open = options.eventSource ?? ((url) => new EventSource(url));
    this._retryMs = options.retryMs ?? RETRY_MS;
    this._prepareUrl = options.prepareUrl ?? ((url) => url);
    this._headers = options.headers ?? (() => ({}));
    this._loadsHistory = options.history ?? true;
    this._isLoading = false;
    this._loadsAgain = false;
    this._branches = new Map(); // the stored messages of each branch that was read
    this._listeners = new Map();
    this._source = null;
    this._wasOpen = false;
    this._closed = false;
    this._timers = new Set();
    this._reopening = false;
  }

  /** Registers a listener: "history", "content", "completed", "state", "signal", "refresh", "connection" or "error". */
  on(kind, listener) {
    if (!this._listeners.has(kind)) this._listeners.set(kind, new Set());
    this._listeners.get(kind).add(listener);
    return () => this._listeners.get(kind)?.delete(listener); // none are left after close()
  }

  /** Reads the metadata and the messages of the active branch, then opens the stream of signals. */
  async start() {
    await this.refresh("start");
    await this._connect();
    return this;
  }

  /** Ends it; nothing is called afterwards. */
  close() {
    this._closed = true;
    this._source?.close();
    this._source = null;
    for (const timer of this._timers) clearTimeout(timer);
    this._timers.clear();
    this._listeners.clear();
  }

  /** The context's metadata. */
  metadata() {
    return this._get("/metadata");
  }

  /** Messages: `{ ids: [...] }`, or a page of a branch: `{ branch, offset, limit }`. */
  messagesPage(query = {}) {
    const search = new URLSearchParams();
    for (const [name, value] of Object.entries(query)) {
      if (value !== undefined && value !== null) search.set(name, Array.isArray(value) ? value.join(",") : String(value));
    }
    return this._get(`/messages?${search}`);
  }

  /** Everything that is known of a message: `{ text, sequence, known, complete }`. */
  message(messageId) {
    if (!this.messages.has(messageId)) {
      this.messages.set(messageId, { text: "", sequence: 0, known: 0, complete: false, final: null, pulling: false, idle: 0 });
    }
    return this.messages.get(messageId);
  }

  /** Reads the metadata and what is new on the active branch, and pulls every open message; called by itself after a
   * reconnection and a branch switch. */
  async refresh(reason = "asked") {
    try {
      const metadata = await this.metadata();
      this._setState(metadata.current_state);
      if (this._loadsHistory) await this._loadHistory(metadata.active_branch_name);
      this._isStale = false;
      this._emit("refresh", { metadata, reason });
    } catch (error) {
      this._isStale = true;
      this._emit("error", { error, during: "refresh" });
    }
    for (const [messageId, message] of this.messages) {
      if (!message.complete) this._pull(messageId, { always: true });
    }
  }

  /** Whether a signal's number is further ahead than the next chunk. */
  hasGap(messageId, serverSequence) {
    return serverSequence - this.message(messageId).sequence > 1;
  }

  /** Takes in a signal, as parsed from the stream. */
  handle(signal) {
    if (this._closed) return;
    this.stats.signals += 1;
    const isAhead = (signal.sequence_num ?? 0) > this._seen;
    this._seen = Math.max(signal.messages_removed ? 0 : this._seen, signal.sequence_num ?? 0);
    this._emit("signal", signal);
    if (signal.is_cut) return void this.refresh("cut signal"); // its ids did not fit into the signal
    switch (signal.type) {
      case "content_delta":
        this._advance(signal.message_id, signal.current_sequence);
        break;
      case "message_completed":
        this.message(signal.message_id).final = signal.final_sequence;
        this._advance(signal.message_id, signal.final_sequence);
        break;
      case "message_created":
        if (this._loadsHistory && !this.messages.has(signal.message_id)) this._historySoon();
        break;
      case "state_changed":
        this._setState(signal.new_state);
        if (signal.messages_removed) {
          this._branches.clear(); // lists that are in memory may contain what was removed
          this.refresh("removed");
        } else if (this._loadsHistory && this.branch !== null && (signal.active_branch_name ?? this.branch) !== this.branch) this.refresh("branch");
        break;
      case "heartbeat":
        if (isAhead || this._isStale) this.refresh("heartbeat");
        break;
    }
  }

  // What is inside.

  /** Reads the messages of a branch behind those that are in memory, page by page. */
  async _loadHistory(branch) {
    const isReload = this.branch === branch && !this._branches.has(branch);
    let known = this._branches.get(branch) ?? [];
    // The last known message is read again: another one in its place means that the branch was created again.
    let offset = Math.max(known.length - 1, 0);
    let isChecked = !known.length;
    const fresh = [];
    let more = true;
    while (more && !this._closed) {
      const page = await this.messagesPage({ branch, offset, limit: HISTORY_PAGE });
      if (!isChecked) {
        isChecked = true;
        if (page.messages[0]?.id !== known.at(-1).id) {
          known = [];
          offset = 0;
          continue;
        }
        page.messages.shift();
        offset += 1;
      }
      const stored = page.messages.filter((message) => message.status !== "streaming");
      fresh.push(...page.messages);
      offset += stored.length;
      more = page.has_more ?? stored.length >= HISTORY_PAGE;
    }
    if (this._closed) return;
    const all = [...known, ...fresh.filter((message) => message.status !== "streaming")];
    this._branches.set(branch, all);
    const switched = this.branch !== branch;
    this.branch = branch;
    for (const message of fresh) this._takeStored(message);
    if (switched || isReload || fresh.length) this._emit("history", { branch, messages: all });
  }

  /** Reads what is new on the active branch; many calls during one read become one more read. */
  async _historySoon() {
    if (this._isLoading) return void (this._loadsAgain = true);
    this._isLoading = true;
    try {
      do {
        this._loadsAgain = false;
        if (this.branch !== null) await this._loadHistory(this.branch);
      } while (this._loadsAgain && !this._closed);
    } catch (error) {
      this._emit("error", { error, during: "history" });
    } finally {
      this._isLoading = false;
    }
  }

  /** A message of a list: a finished one is whole, one that is being written is pulled. */
  _takeStored(stored) {
    const isOpen = this.messages.has(stored.id); // it was being written, and listeners have its beginning
    const message = this.message(stored.id);
    if (stored.status === "streaming") return void this._pull(stored.id, { always: true });
    if (message.complete) return;
    const before = message.text;
    message.text = (stored.content ?? []).map((part) => part.text ?? "").join("");
    message.sequence = message.known = message.final = stored.final_sequence ?? 1;
    message.complete = true;
    if (!isOpen) return;
    const { text, sequence } = message;
    const delta = text.startsWith(before) ? text.slice(before.length) : text;
    if (text !== before) this._emit("content", { messageId: stored.id, delta, text, sequence, complete: true });
    this._emit("completed", { messageId: stored.id, text, sequence });
  }

  _setState(state) {
    if (state === undefined || state === null || state === this.state) return;
    this.state = state;
    this._emit("state", { state });
  }

  _advance(messageId, serverSequence) {
    const message = this.message(messageId);
    if (this.hasGap(messageId, serverSequence)) this.stats.gaps += 1;
    message.known = Math.max(message.known, serverSequence);
    message.idle = 0;
    if (message.known > message.sequence) this._pull(messageId);
    else this._finishIfWhole(messageId);
  }

  async _pull(messageId, { always = false } = {}) {
    const message = this.message(messageId);
    if (message.pulling) {
      message.again = true; // one more pull after this one, however many signals arrive during it
      return;
    }
    message.pulling = true;
    message.again = false;
    message.failed = false;
    try {
      let more = always || message.known > message.sequence;
      while (more && !this._closed) {
        this.stats.pulls += 1;
        const id = encodeURIComponent(messageId);
        const page = await this._get(
          `/messages/${id}/streaming-chunks?from_sequence=${message.sequence}&limit=${PULL_LIMIT}`,
        );
        const received = this._take(messageId, page.chunks);
        message.known = Math.max(message.known, page.current_sequence ?? 0);
        more = received > 0 && (page.has_more || message.known > message.sequence);
      }
    } catch (error) {
      this.stats.failed += 1;
      message.failed = true;
      this._emit("error", { error, during: "pull", messageId });
    } finally {
      message.pulling = false;
    }
    if (this._closed) return;
    this._finishIfWhole(messageId);
    if (message.known <= message.sequence) return;
    if (message.again && !message.failed) this._pull(messageId);
    else if (message.idle < MAX_IDLE_PULLS) {
      message.idle += 1;
      this._later(() => this._pull(messageId)); // in case no signal comes any more
    }
  }

  /** Applies chunks that follow on what is there; what is old or has a hole before it is left out. */
  _take(messageId, chunks) {
    const message = this.message(messageId);
    let delta = "";
    let received = 0;
    if (message.complete) return received; // a list had the whole message first
    for (const chunk of chunks) {
      if (chunk.sequence !== message.sequence + 1) continue;
      message.sequence = chunk.sequence;
      delta += chunk.delta;
      received += 1;
    }
    if (received && !this._closed) {
      message.text += delta;
      message.idle = 0;
      this._emit("content", { messageId, delta, text: message.text, sequence: message.sequence, complete: false });
    }
    return received;
  }

  _finishIfWhole(messageId) {
    const message = this.message(messageId);
    if (message.complete || message.final === null || message.sequence < message.final) return;
    message.complete = true;
    this._emit("completed", { messageId, text: message.text, sequence: message.sequence });
    if (!this._loadsHistory) this._forgetOldest();
  }

  /** Without a history, what was finished first is dropped, so that a page that stays open does not grow. */
  _forgetOldest() {
    const complete = [...this.messages].filter(([, message]) => message.complete && !message.pulling);
    for (const [messageId] of complete.slice(0, -MAX_COMPLETE_MESSAGES)) this.messages.delete(messageId);
  }

  async _connect() {
    if (this._closed) return;
    let url;
    try {
      url = await this._prepareUrl(this._url("/events"));
    } catch (error) {
      this._emit("error", { error, during: "connect" });
      this._reopenLater();
      return;
    }
    if (this._closed) return;
    const source = this._open(url);
    this._source = source;
    source.addEventListener("signal", (event) => {
      let signal;
      try {
        signal = JSON.parse(event.data);
      } catch {
        return; // like a lost signal: the next one names a newer sequence
      }
      this.handle(signal);
    });
    source.addEventListener("open", () => {
      this._emit("connection", { open: true, reconnecting: false });
      if (this._wasOpen) this.stats.reconnects += 1;
      if (this._wasOpen || this._isStale) this.refresh("reconnect");
      this._wasOpen = true;
    });
    source.addEventListener("error", () => {
      this._emit("connection", { open: false, reconnecting: this._wasOpen });
      // Connecting, it tries again by itself; closed, it has given up (or its ticket has), and we open a new one.
      if (source.readyState === 2) this._reopenLater();
    });
  }

  _reopenLater() {
    this._source?.close();
    if (this._reopening) return;
    this._reopening = true;
    this._later(() => {
      this._reopening = false;
      this._connect();
    });
  }

  _later(action) {
    if (this._closed) return;
    const timer = setTimeout(() => {
      this._timers.delete(timer);
      if (!this._closed) action();
    }, this._retryMs);
    timer.unref?.();
    this._timers.add(timer);
  }

  _url(path) {
    return `${this.base}/contexts/${encodeURIComponent(this.contextId)}${path}`;
  }

  async _get(path) {
    // A server that reads from replicas answers with no less than what was seen here.
    const headers = { ...this._headers(), "X-Seen-Sequence": String(this._seen) };
    const response = await this._fetch(this._url(path), { headers });
    if (!response.ok) throw new Error(`${response.status} for ${path}`);
    return response.json();
  }

  _emit(kind, detail) {
    for (const listener of this._listeners.get(kind) ?? []) listener(detail);
  }
}
