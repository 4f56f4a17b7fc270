// A thread's events in pages of fixed numbers: page 0 has 1…100. Pages are fetched once, and the tail grows.

import { get, thread } from "./api.js";
import { isCut } from "./value_tree.js";

export const PAGE = 100;
const TAIL = 500;

/** Whether the server left out no part of a content for its size. */
const isWhole = (value) => value === null || typeof value !== "object" || (!isCut(value) && Object.values(value).every(isWhole));

export class EventCache {
  constructor(threadId, lastSequence) {
    this.threadId = threadId;
    this.last = lastSequence;
    this._events = new Map();
    this._pages = new Map();
    this._catching = null;
    this._wanted = lastSequence;
    this._calls = 0;
  }

  get pageCount() {
    return Math.max(1, Math.ceil(this.last / PAGE));
  }

  pageOf(sequence) {
    return Math.floor((Math.max(sequence, 1) - 1) / PAGE);
  }

  find(sequence) {
    return this._events.get(sequence);
  }

  /** The events of a page that are there by now, in order. */
  loaded(page) {
    const found = [];
    for (let number = page * PAGE + 1; number <= (page + 1) * PAGE; number++) {
      const event = this._events.get(number);
      if (event) found.push(event);
    }
    return found;
  }

  /** A page's events, fetched if need be. */
  async page(page) {
    const upTo = Math.min(this.last, (page + 1) * PAGE);
    if (this._events.has(upTo) && this._events.has(page * PAGE + 1)) {
      const loaded = this.loaded(page);
      if (loaded.length === upTo - page * PAGE) return loaded;
    }
    if (!this._pages.has(page)) {
      const fetching = get(thread(this.threadId, "/events"), { after: page * PAGE, limit: PAGE })
        .then((answer) => this._keep(answer.events))
        .finally(() => this._pages.delete(page));
      this._pages.set(page, fetching);
    }
    await this._pages.get(page);
    return this.loaded(page);
  }

  /** The content of a run's last message of the user; null if it has none. The input of a run has the messages that its agent stores itself. */
  async messageOf(run) {
    const given = run.input?.messages?.at?.(-1);
    if (given?.role === "user") return given.content;
    let isReached = false;
    for (let page = this.pageOf(this.last); page >= 0; page--) {
      const events = (await this.page(page)).filter((event) => event.run_id === run.id);
      const said = events.findLast((event) => event.event_type === "user_message")?.content;
      if (said) return isWhole(said) ? (said.text ?? said.content ?? null) : null;
      if (isReached && !events.length) break;
      isReached ||= events.length > 0;
    }
    return null;
  }

  /** Reads everything up to an announced sequence number; returns what is new, in order. */
  async catchUp(sequence) {
    this._wanted = Math.max(this._wanted, sequence);
    this._calls++;
    if (this._catching) return [];
    this._catching = this._catch();
    try {
      return await this._catching;
    } finally {
      this._catching = null;
    }
  }

  async _catch() {
    const fresh = [];
    while (this.last < this._wanted) {
      const calls = this._calls;
      const answer = await get(thread(this.threadId, "/events"), { after: this.last, limit: TAIL });
      if (!answer.events.length) {
        // A call that came in after this page was read may know of a later event.
        if (calls === this._calls) break;
        continue;
      }
      this._keep(answer.events);
      fresh.push(...answer.events);
      this.last = answer.events.at(-1).sequence_num;
      this._wanted = Math.max(this._wanted, answer.last_sequence);
    }
    return fresh;
  }

  _keep(events) {
    for (const event of events) this._events.set(event.sequence_num, event);
  }
}
