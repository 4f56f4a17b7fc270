// The timeline: runs, and in them messages, thoughts, tool cards and state writes.
//
// The thread's events stand in pages of a hundred. Each page is a section of estimated height; only those near the view
// are filled, and emptied again when they are far away. So a thread of any length costs a screen or two of elements.

import { get, thread } from "./api.js";
import { releaseMedia } from "./attachments.js";
import { ToolCard, bubble, orphanResult, row, stateChips, thought } from "./cards.js";
import { diffView } from "./diff.js";
import { h, icon, replace } from "./dom.js";
import { PAGE } from "./event_cache.js";
import { endsRun, readEvent } from "./event_reading.js";
import { WAITS, between, duration, exact, reasonOf, shortId, since } from "./format.js";
import { QuestionCard } from "./question_card.js";

const NEAR = "1500px 0px";
const ESTIMATE = 46;
const MOST_ANNOUNCED = 500;
const AT_END = 120;
const ENDED = ["completed", "failed", "cancelled"];

export class Timeline {
  /** `actions`: select(sequence, key?), openRun(id), give(question, payload), withdraw(question), may(permission), moved(atEnd), suggest(text). */
  constructor(scroller, actions) {
    this._scroller = scroller;
    this._actions = actions;
    this._list = h("div.pages");
    this._tail = h("div.tail");
    // A reader of the page hears each message once it is stored, not every token of it.
    this._announcer = h("div.announcer", { role: "status" });
    this._popover = h("div.popover", { hidden: true, role: "tooltip" });
    scroller.append(this._list, this._tail, this._popover, this._announcer);
    this.reset();
    scroller.addEventListener("scroll", () => this._onScroll(), { passive: true });
    // An image that is loaded, or less room for the timeline: what is shown at its end stays there.
    const resized = new ResizeObserver(() => this._isFollowing && this.toEnd());
    for (const element of [this._list, scroller]) resized.observe(element);
    scroller.addEventListener("click", (event) => this._onClick(event));
  }

  /** Clear everything of the thread. */
  reset() {
    this._observer?.disconnect();
    this._isFollowing = false;
    this._pages = [];
    this._calls = new Map();
    this._results = new Map();
    this._waited = new Set();
    this._questions = new Map();
    this._openQuestions = new Set();
    this._runs = new Map();
    this._streams = new Map();
    this._stored = new Set();
    this._at = null;
    this._ranges = null;
    this._selected = null;
    this._diffs = new Map();
    releaseMedia(this._list);
    replace(this._list);
    replace(this._tail);
  }

  /** Shows a thread: at its end, or at an event. */
  async open(cache, { runs = [], target = null, suggestions = [] } = {}) {
    this.reset();
    this._cache = cache;
    for (const run of runs) this._runs.set(run.id, { status: run.status, from: run.started_at ?? run.created_at, to: run.completed_at, heads: new Set() });
    this._observer = new IntersectionObserver((entries) => this._onIntersection(entries), { root: this._scroller, rootMargin: NEAR });
    if (!cache.last) return replace(this._list, empty(suggestions, this._actions.suggest));
    for (let number = 0; number < cache.pageCount; number++) this._addPage(number);
    const first = target ? cache.pageOf(Math.min(target, cache.last)) : cache.pageCount - 1;
    await Promise.all([this._render(first), target || first === 0 ? null : this._render(first - 1)]);
    if (this._cache !== cache) return;
    if (target) await this.reveal(target);
    else this.toEnd();
    for (const page of this._pages) this._observer.observe(page.element);
  }

  /** Adds events that have just happened. */
  append(events) {
    const stay = this.isAtEnd();
    if (events.length) this._list.querySelector(".empty")?.remove();
    for (const event of events) {
      const number = this._cache.pageOf(event.sequence_num);
      while (this._pages.length <= number) {
        const page = this._addPage(this._pages.length);
        page.rendered = true;
        page.element.style.removeProperty("height");
        this._observer?.observe(page.element);
      }
      const page = this._pages[number];
      if (page.rendered) this._addEvent(page, event, true);
      else this._sizeOf(page);
      this._dropStream(event);
      this._announce(event);
    }
    if (stay) this.toEnd();
  }

  _announce(event) {
    const said = readEvent(event).find((part) => part.kind === "message" && part.role === "assistant" && typeof part.text === "string");
    if (said) this._announcer.textContent = `${event.author}: ${said.text.slice(0, MOST_ANNOUNCED)}`;
  }

  /** Scrolls to an event and marks it. */
  async reveal(sequence, { isMarked = true } = {}) {
    const page = this._cache.pageOf(Math.min(sequence, Math.max(this._cache.last, 1)));
    if (!this._pages[page]) return;
    this._isFollowing = false;
    await this._render(page);
    if (isMarked) this.mark(sequence);
    const element = this._rowOf(sequence) ?? this._pages[page].element;
    element.scrollIntoView({ block: "center" });
    // Pages around it take their true height after it came into view.
    requestAnimationFrame(() => element.scrollIntoView({ block: "center" }));
  }

  /** Marks an event as the selected one. */
  mark(sequence) {
    this._selected = sequence;
    for (const old of this._list.querySelectorAll(".is-selected")) old.classList.remove("is-selected");
    if (sequence !== null) for (const one of this._rowsOf(sequence)) one.classList.add("is-selected");
  }

  /** Greys out everything after an event; null is the present. */
  setPast(at) {
    this._at = at;
    if (at !== null) this._isFollowing = false;
    this._scroller.classList.toggle("is-past", at !== null);
    for (const one of this._list.querySelectorAll("[data-seq]")) this._shade(one);
  }

  /** Dims the events outside of these ranges of sequence numbers: they are on other branches. */
  setActivePath(ranges) {
    this._ranges = ranges;
    for (const one of this._list.querySelectorAll("[data-seq]")) this._shade(one);
  }

  /** Whether a tool call waits for a person ("open") or did so ("answered"); null if it never asked. */
  waitOf(callId) {
    if (!this._waited.has(callId)) return null;
    return this._results.has(callId) ? "answered" : "open";
  }

  setOpenQuestions(ids) {
    this._openQuestions = new Set(ids);
    for (const [id, card] of this._questions) card.setOpen(this._openQuestions.has(id));
  }

  setRuns(runs) {
    for (const run of runs) {
      const known = this._run(run.id);
      Object.assign(known, { status: run.status, from: run.started_at ?? run.created_at, to: run.completed_at });
      for (const call of run.tool_calls ?? []) if (call.finished_at) this._calls.get(String(call.id))?.setDuration(between(call.at, call.finished_at));
      this._showRun(run.id);
    }
  }

  /** Text that is being streamed: `{ text, role, author }`. */
  stream(messageId, { text, author = "assistant" }) {
    if (this._cache && this._isStored(messageId)) return;
    const stay = this.isAtEnd();
    let entry = this._streams.get(messageId);
    if (!entry) {
      const words = document.createTextNode("");
      const said = h("div.said", {}, words);
      const element = h(
        "div.row.k-message.is-streaming", { "data-message": messageId },
        h("span.gutter", {}, h("span.live-dot", { "aria-label": "streaming" })),
        h("div.row-body", {}, h("div.bubble.from-assistant", {}, h("div.who", {}, author), said)),
      );
      entry = { element, words };
      this._streams.set(messageId, entry);
      this._tail.append(element);
    }
    const { words } = entry;
    if (text.startsWith(words.data)) words.appendData(text.slice(words.length));
    else words.data = text;
    if (stay) this.toEnd();
  }

  /** The stream has ended; its event follows, and until then the text stays. */
  endStream(messageId) {
    this._streams.get(messageId)?.element.classList.add("is-complete");
  }

  isAtEnd() {
    const { scrollHeight, scrollTop, clientHeight } = this._scroller;
    return scrollHeight - scrollTop - clientHeight < AT_END;
  }

  _onScroll() {
    this._isFollowing = this.isAtEnd() && this._at === null;
    this._actions.moved?.(this.isAtEnd());
  }

  toEnd() {
    this._isFollowing = true;
    this._scroller.scrollTop = this._scroller.scrollHeight;
  }

  // Pages

  _addPage(number) {
    const page = { number, element: h("section.page", { "data-page": number }), rendered: false, turn: null, height: 0 };
    this._pages.push(page);
    this._list.append(page.element);
    this._sizeOf(page);
    return page;
  }

  _sizeOf(page) {
    const count = Math.min(PAGE, this._cache.last - page.number * PAGE);
    page.element.style.height = `${page.height || Math.max(count, 1) * ESTIMATE}px`;
  }

  async _render(number) {
    const page = this._pages[number];
    if (!page || page.rendered) return;
    const cache = this._cache;
    let events;
    try {
      events = await cache.page(number);
    } catch (error) {
      if (cache === this._cache && !page.rendered) replace(page.element, problem(error, () => this._render(number)));
      return;
    }
    if (cache !== this._cache || page.rendered) return;
    page.rendered = true;
    page.turn = null;
    replace(page.element);
    for (const event of events) {
      this._addEvent(page, event, false);
      this._dropStream(event);
    }
    page.element.style.removeProperty("height");
  }

  _onIntersection(entries) {
    for (const entry of entries) {
      const page = this._pages[Number(entry.target.dataset.page)];
      if (!page) continue;
      if (entry.isIntersecting) this._render(page.number);
      else if (page.rendered && page.number < this._pages.length - 1) {
        page.height = page.element.offsetHeight;
        this._empty(page);
      }
    }
  }

  /** Removes the rows of a page. Cards of open questions stay in memory, with what is typed into them. */
  _empty(page) {
    for (const card of page.element.querySelectorAll("[data-call]")) this._calls.delete(card.dataset.call);
    for (const { dataset } of page.element.querySelectorAll("[data-question]")) if (!this._openQuestions.has(dataset.question)) this._questions.delete(dataset.question);
    for (const turn of page.element.querySelectorAll(".turn")) this._run(turn.dataset.run).heads.delete(turn);
    page.rendered = false;
    page.turn = null;
    releaseMedia(page.element);
    replace(page.element);
    this._sizeOf(page);
  }

  // Events

  _addEvent(page, event, isNew) {
    if (page.element.querySelector(`[data-seq="${event.sequence_num}"]`)) return;
    const place = this._placeOf(page, event);
    const made = [];
    for (const part of readEvent(event)) {
      const one = this._rowFor(part, event);
      if (one) made.push(one);
    }
    if (!made.length) made.push(h("div.anchor", { "data-seq": event.sequence_num }));
    for (const one of made) {
      if (isNew) one.classList.add("is-new");
      if (event.sequence_num === this._selected) one.classList.add("is-selected");
      this._shade(one);
      place.append(one);
    }
  }

  _placeOf(page, event) {
    if (!event.run_id) {
      page.turn = null;
      return page.element;
    }
    const run = this._run(event.run_id);
    if (event.event_type === "run_started" || event.event_type === "run_created") run.from = event.created_at;
    if (event.event_type.startsWith("run_")) {
      const status = readEvent(event)[0].status;
      const known = ENDED.includes(run.status) && !endsRun(event.event_type);
      if (!known) run.status = status === "resumed" ? "running" : status;
      if (endsRun(event.event_type)) run.to = event.created_at;
    }
    if (page.turn?.dataset.run !== event.run_id) {
      page.turn = this._newTurn(event.run_id, event);
      page.element.append(page.turn);
    }
    this._showRun(event.run_id);
    return page.turn;
  }

  _newTurn(runId, event) {
    const head = h(
      "button.turn-head", { type: "button", title: `Run ${runId}` },
      h("span.dot"), h("span.turn-name", {}, "Run ", h("code", {}, shortId(runId))),
      h("span.turn-status"), h("span.turn-time", { title: exact(event.created_at) }, since(event.created_at)),
    );
    head.addEventListener("click", () => this._actions.openRun(runId));
    const turn = h("article.turn", { "data-run": runId }, head);
    this._run(runId).heads.add(turn);
    return turn;
  }

  _run(id) {
    if (!this._runs.has(id)) this._runs.set(id, { status: "", from: null, to: null, heads: new Set() });
    return this._runs.get(id);
  }

  _showRun(id) {
    const run = this._run(id);
    for (const turn of run.heads) {
      turn.dataset.status = run.status;
      const took = run.to ? ` · ${duration(between(run.from, run.to))}` : "";
      turn.querySelector(".turn-status").textContent = `${run.status}${took}`;
    }
    if (ENDED.includes(run.status)) for (const card of this._calls.values()) if (card.runId === id) card.abandon();
  }

  _rowFor(part, event) {
    const whole = (pick) => async () => pick(readEvent((await get(thread(this._cache.threadId, `/events/${event.sequence_num}`))).event));
    switch (part.kind) {
      case "message":
        return row(event, "message", bubble(part, event.author, this._cache.threadId, whole((parts) => parts.find((one) => one.kind === "message")?.text)));
      case "thought":
        return row(event, "thought", thought(part.text, whole((parts) => parts.find((one) => one.kind === "thought")?.text)));
      case "call": {
        const card = new ToolCard(part, event, whole((parts) => parts.find((one) => one.kind === "call" && one.id === part.id)?.args));
        this._calls.set(part.id, card);
        this._takeResult(part.id, card);
        return row(event, "tool", card.element);
      }
      case "result": {
        const card = this._calls.get(part.id);
        if (part.waiting) {
          this._waited.add(part.id);
          card?.finish(part, event);
          return null;
        }
        const load = whole((parts) => parts.find((one) => one.kind === "result" && one.id === part.id)?.result);
        const result = { part, event, load, element: null };
        this._results.set(part.id, result);
        if (card) {
          card.finish(part, event, load);
          return null;
        }
        return (result.element = row(event, "tool", orphanResult(part, load)));
      }
      case "question": {
        const card = this._questions.get(part.question.id) ?? new QuestionCard(part.question, this._actions);
        card.setOpen(this._openQuestions.has(part.question.id));
        this._questions.set(part.question.id, card);
        if (part.question.tool_call_id !== null) {
          this._waited.add(part.question.tool_call_id);
          this._calls.get(part.question.tool_call_id)?.finish({ waiting: true }, event);
        }
        return row(event, "tool", card.element);
      }
      case "state":
        return row(
          event, "state",
          stateChips(part.delta, (key) => this._actions.select(event.sequence_num, key), (chip, key) => this._onHover(chip, event.sequence_num, key)),
        );
      case "step":
        return part.isStart ? row(event, "step", h("div.step", {}, icon("play"), h("span", {}, "Step "), h("code", {}, part.name))) : null;
      case "action":
        return row(event, "run", h("div.action", {}, icon("person"), h("span", {}, part.text), h("span.muted", {}, `by ${event.author}`)));
      case "run":
        if (part.status === "failed") this._withdrawError(event.run_id, part.error);
        if (part.status === "failed") return row(event, "run", h("div.failure", {}, icon("warn"), h("span", {}, part.error ? String(part.error) : "The run failed")));
        if (part.status === "waiting") return row(event, "run", h("div.waiting", { "data-wait": part.waitKind }, icon("clock"), h("span", {}, `Waiting for ${WAITS[part.waitKind] ?? "a signal"}`), part.waitKey && h("code", {}, part.waitKey), reasonOf(part.reason) && h("span.muted", {}, part.reason)));
        if (part.status === "cancelled") return row(event, "run", h("div.waiting", {}, icon("stop"), h("span", {}, "Cancelled")));
        return null;
      case "error":
        return this._errorRow(part, event);
      default:
        return row(event, "other", h("div.other", {}, h("code", {}, event.event_type), h("span.muted", {}, event.author)));
    }
  }

  _errorRow(part, event) {
    const element = row(event, "run", h("div.failure", {}, icon("warn"), h("span", {}, part.text)));
    if (event.run_id) this._run(event.run_id).error = { text: part.text, element };
    return element;
  }

  /** Removes an error of a run that the failure of the run repeats. */
  _withdrawError(runId, failure) {
    const error = runId && this._run(runId).error;
    if (error && String(failure).includes(error.text)) error.element.replaceWith(h("div.anchor", { "data-seq": error.element.dataset.seq }));
  }

  /** Shows the result of a call that came before the call itself: they are on different pages. */
  _takeResult(callId, card) {
    if (this._waited.has(callId)) card.finish({ waiting: true });
    const result = this._results.get(callId);
    if (!result) return;
    card.finish(result.part, result.event, result.load);
    result.element?.replaceWith(h("div.anchor", { "data-seq": result.event.sequence_num }));
    result.element = null;
  }

  _shade(element) {
    const sequence = Number(element.dataset.seq);
    element.classList.toggle("is-future", this._at !== null && sequence > this._at);
    element.classList.toggle("is-elsewhere", this._ranges !== null && !this._ranges.some(([first, last]) => first <= sequence && sequence <= last));
  }

  _rowOf(sequence) {
    return this._list.querySelector(`[data-seq="${sequence}"]`);
  }

  _rowsOf(sequence) {
    return this._list.querySelectorAll(`[data-seq="${sequence}"]`);
  }

  _isStored(messageId) {
    return this._stored.has(messageId);
  }

  _dropStream(event) {
    for (const id of [event.id, event.content?.message_id]) {
      if (!id) continue;
      this._stored.add(id);
      this._streams.get(id)?.element.remove();
      this._streams.delete(id);
    }
  }

  _onClick(event) {
    const link = event.target.closest("[data-select]");
    if (link) event.preventDefault();
    else if (event.target.closest("button, a, input") || String(getSelection())) return;
    const chosen = event.target.closest("[data-seq]");
    if (chosen) this._actions.select(Number(chosen.dataset.seq));
  }

  async _onHover(chip, sequence, key) {
    this._hovered = chip;
    if (!chip) {
      this._popover.hidden = true;
      return;
    }
    if (!this._diffs.has(sequence)) this._diffs.set(sequence, get(thread(this._cache.threadId, `/events/${sequence}/diff`)));
    let diff;
    try {
      diff = await this._diffs.get(sequence);
    } catch {
      this._diffs.delete(sequence);
      return;
    }
    if (this._hovered !== chip || !chip.isConnected) return;
    replace(this._popover, diffView(diff, { onlyKey: key }));
    this._popover.hidden = false;
    const box = this._scroller.getBoundingClientRect();
    const from = chip.getBoundingClientRect();
    const left = Math.min(from.left - box.left, box.width - this._popover.offsetWidth - 16);
    this._popover.style.left = `${Math.max(8, left)}px`;
    this._popover.style.top = `${from.bottom - box.top + this._scroller.scrollTop + 6}px`;
  }
}

function problem(error, again) {
  return h("div.page-problem", {}, icon("warn"), h("span", {}, `These events cannot be read: ${error.message}`), h("button", { type: "button", onclick: again }, "Try again"));
}

function empty(suggestions, suggest) {
  return h(
    "div.empty", {}, icon("pulse"), h("h2", {}, "No events yet"), h("p", {}, "Events appear here as soon as they are stored."),
    suggestions.length > 0 && h("div.buttons.suggestions", {}, suggestions.map((text) => h("button", { type: "button", onclick: () => suggest(text) }, text))),
  );
}
