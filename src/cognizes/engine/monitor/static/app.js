// The Monitor: puts its parts together and follows the address.

import { Answers, questionOf } from "./answers.js";
import { authorization, get, onSignInNeeded, post, savedKey, saveKey, thread, ticketed, url } from "./api.js";
import { BranchPanel } from "./branch_panel.js";
import { Chat } from "./chat.js";
import { h, icon, replace } from "./dom.js";
import { EventCache } from "./event_cache.js";
import { EventPanel } from "./event_panel.js";
import { readEvent } from "./event_reading.js";
import { counted, showGrowing, titleOf } from "./format.js";
import { Inbox } from "./inbox.js";
import { follow } from "./live.js";
import { MemoryPanel } from "./memory_panel.js";
import { PulseStrip } from "./pulse_strip.js";
import { go, parse } from "./router.js";
import { RunPanel } from "./run_panel.js";
import { RunsPage } from "./runs_page.js";
import { SignalPullClient } from "./signal_pull.js";
import { StatePanel } from "./state_panel.js";
import { ThreadHead } from "./thread_head.js";
import { ThreadList } from "./thread_list.js";
import { TimeTravel } from "./time_travel.js";
import { Timeline } from "./timeline.js";
import { UserPage } from "./user_page.js";
import { welcome } from "./welcome.js";

const byId = (id) => document.getElementById(id);
const TABS = ["state", "event", "run", "memory", "branches"];
const POLL_MS = 5000;
const RETRY_MS = 2000;
const GROWTH_MS = 1000;
const SUGGESTIONS = ["What can you do?", "Which tools do you have?"];
const DEMO_SUGGESTIONS = ["What time is it?", "Remember that I like tea", "Delete my diary"];

class Monitor {
  constructor() {
    this._place = { threadId: null };
    this._agents = null;
    this._caller = null;
    this._paused = false;
    this._waitingEvents = [];
    this._answers = new Answers((permission) => this._may(permission));
    this._questions = [];
    this._asked = this._shown = 0;
    const answering = {
      give: (question, payload) => this._answers.give(this._cache.threadId, question, payload, this._questions),
      withdraw: (question) => this._answers.withdraw(this._cache.threadId, question.id),
      may: (permission) => this._may(permission),
    };
    this._pulse = new PulseStrip(byId("pulse-strip"), byId("pulse-panel"));
    this._list = new ThreadList(byId("thread-list"), { open: (threadId) => go({ threadId }), create: () => this._newConversation() });
    this._timeline = new Timeline(byId("timeline"), {
      select: (sequence, key) => this._select(sequence, key),
      openRun: (id) => this._openRun(id),
      ...answering,
      moved: (atEnd) => atEnd && this._showPaused(),
      suggest: (text) => this._chat.propose(text),
    });
    this._head = new ThreadHead(byId("thread-head"), {
      show: (kind) => (byId("timeline").dataset.show = kind),
      pause: (paused) => this._pause(paused),
      view: (name) => (byId("columns").dataset.view = name),
      reveal: (sequence) => this._goTo({ event: sequence, tab: null, key: null, run: null }),
      renamed: (one) => this._list.pulse(one.thread_id),
      deleted: (one) => (this._list.remove(one.thread_id), go({ threadId: null })),
      failed: (error) => this._notify(error.message),
      may: (permission) => this._may(permission),
    });
    this._travel = new TimeTravel(byId("travel"), { travel: (at) => this._goTo({ at, version: null }), describe: (at) => this._cache?.find(at), branch: (at) => this._branchAt(at) });
    this._chat = new Chat(byId("chat"), { failed: (error) => (this._notify(error.message), this._checkThread(this._cache)), sending: () => this._beforeSending() });
    const everywhere = { open: (threadId, run) => go({ threadId, run, tab: "run" }), failed: (error) => this._notify(error.message), query: () => this._allowed(), isOfApps: () => Boolean(this._caller?.app_names), may: (permission) => this._may(permission), answers: this._answers };
    this._inbox = new Inbox(byId("inbox"), byId("inbox-panel"), everywhere);
    const pages = byId("timeline").querySelector(".pages");
    this._runsPage = new RunsPage(pages, everywhere);
    this._userPage = new UserPage(pages, { failed: (error) => this._notify(error.message), may: (permission) => this._may(permission), erased: () => (go({ threadId: null }), this._list.load()) });
    this._buildTabs(answering);
    this._buildTheme();
    this._buildSignIn();
    document.querySelector(".skip").addEventListener("click", (event) => {
      event.preventDefault();
      byId("timeline").focus();
    });
    addEventListener("hashchange", () => this._arrive());
    addEventListener("keydown", (event) => this._onKey(event));
    byId("new-events").addEventListener("click", () => this._pause(false));
    setInterval(() => document.hidden || showGrowing(), GROWTH_MS);
  }

  async start() {
    this._arrive();
    this._caller = await this._identify();
    if (this._needsKey) return;
    this._list.limitTo(this._caller);
    if (this._place.page) this._leave(this._place);
    this._list.load();
    this._inbox.load();
    if (this._isBound()) setInterval(() => this._poll(), POLL_MS);
    else this._followAll();
    await this._loadAgents();
  }

  /** Reads who the caller is. While the server does not answer, it asks again; a refused key is asked for by a dialog. */
  async _identify() {
    for (;;) {
      try {
        return await get("api/access/me");
      } catch (error) {
        this._needsKey = error.status === 401;
        if (!error.isTemporary) return null;
      }
      await new Promise((resume) => setTimeout(resume, RETRY_MS));
    }
  }

  /** Reads the hosted agents; again after the next connection if that fails. */
  async _loadAgents() {
    try {
      this._agents = (await get("agui")).agents;
      this._agentsProblem = null;
    } catch (error) {
      this._agentsProblem = `The agents of this server cannot be listed: ${error.message}`;
    }
    this._list.showNew(this._may("write") ? (this._agents ?? []).map((agent) => agent.name) : [], this._caller?.user_id ?? null);
    if (this._summary) this._openChat();
    else if (!this._place.threadId && !this._place.page) this._leave();
  }

  /** Reads what a caller of some apps is not notified of. */
  _poll() {
    this._list.catchUp();
    this._inbox.load();
    this._runsPage.refresh();
    if (this._agents === null) this._loadAgents();
  }

  /** Only a caller of all apps receives the notifications of all threads. */
  _followAll() {
    follow("*", {
      onItem: (payload) => {
        if (payload.created_at) this._pulse.heard(payload.created_at);
        if (/^[0-9a-f-]{36}$/.test(payload.thread_id ?? "")) this._list.pulse(payload.thread_id);
        this._inbox.onEvent(payload.event_type, payload.thread_id);
        this._runsPage.onEvent(payload.event_type);
      },
      onOpen: (again) => this._afterConnection(again),
    });
  }

  /** Reads what may have changed while there was no connection. */
  _afterConnection(again) {
    if (this._agents === null) this._loadAgents();
    if (!again) return void this._list.catchUp();
    this._list.load();
    this._inbox.load();
    this._runsPage.refresh();
  }

  /** Whether the caller has a permission. */
  _may(permission) {
    const given = this._caller?.permissions;
    return !given || given.includes(permission) || given.includes("admin");
  }

  /** Whether the caller's key or token is bound to some apps or to a user. */
  _isBound() {
    return Boolean(this._caller?.app_names || this._caller?.user_id);
  }

  /** The app and the user that a bound caller has to name. */
  _allowed() {
    if (!this._isBound()) return {};
    return { app_name: this._list.chosenApp || this._caller.app_names?.[0], user_id: this._caller.user_id };
  }

  // The address

  _arrive() {
    const place = parse(location.hash);
    const before = this._place;
    this._place = place;
    this._pulse.close();
    this._inbox.close();
    for (const dialog of document.querySelectorAll("dialog[open]:not(#sign-in-dialog)")) dialog.close();
    byId("runs-link").setAttribute("aria-current", place.page === "runs" ? "page" : "false");
    const isSame = ["threadId", "page", "app", "user"].every((name) => (place[name] ?? null) === (before[name] ?? null));
    if (!isSame || !this._arrived) {
      this._arrived = true;
      if (place.threadId) this._openThread(place);
      else this._leave(place);
    } else if (place.threadId) this._apply(place, before);
  }

  /** Changes the address within the thread, and shows what it names. */
  _goTo(change, stateKey) {
    const before = this._place;
    this._place = { ...before, ...change };
    go(this._place, { quietly: true });
    this._apply(this._place, before, stateKey);
  }

  async _apply(place, before, stateKey) {
    if (place.version !== before.version && place.version !== null) {
      const at = await this._sequenceOf(place.version);
      if (at !== null) this._travelTo(at);
    } else if (place.at !== before.at) this._travelTo(place.at);
    if (place.event !== before.event && place.event !== null) this._showEvent(place.event, stateKey);
    if (place.run !== before.run && place.run !== null) this._runs.choose(place.run);
    if (place.key !== before.key) this._state.showKey(place.key);
    const tab = place.tab ?? (place.key ? "state" : place.event !== null ? "event" : place.run ? "run" : null);
    if (tab) this._showTab(tab);
  }

  // A thread

  _leave({ page = null, app, user } = {}) {
    this._closeThread();
    byId("columns").dataset.view = page ? "thread" : "list";
    byId("columns").classList.add("is-home");
    this._list.select(null);
    this._chat.open(null);
    if (page === "runs") {
      document.title = "Runs · Cognizes Monitor";
      this._runsPage.open();
      return;
    }
    if (page === "user") {
      document.title = `${user} · Cognizes Monitor`;
      this._userPage.open(app, user);
      return;
    }
    const note = this._may("write") ? this._agentsProblem : "A conversation needs a key with the permission write.";
    replace(byId("timeline").querySelector(".pages"), welcome({ agents: this._may("write") ? this._agents : null, note, start: (agent) => this._newConversation(agent) }));
    document.title = "Cognizes Monitor";
  }

  /** Ends what belongs to the thread that is shown. */
  _closeThread() {
    this._close?.();
    this._close = null;
    this._summary = this._cache = null;
    this._questions = [];
    this._paused = false;
    this._waitingEvents = [];
    this._showPaused();
    byId("travel").hidden = true;
    this._head.clear();
    this._timeline.reset();
  }

  async _openThread(place) {
    this._closeThread();
    this._chat.open(null);
    delete byId("columns").dataset.thread;
    byId("columns").classList.remove("is-home");
    byId("columns").dataset.view = "thread";
    this._list.select(place.threadId);
    performance.mark("thread-asked");
    let summary;
    try {
      summary = await get(thread(place.threadId));
    } catch (error) {
      if (this._place.threadId === place.threadId) this._showProblem(error, place);
      return;
    }
    if (this._place.threadId !== place.threadId) return;
    this._summary = summary;
    const cache = (this._cache = new EventCache(summary.thread_id, summary.last_sequence));
    for (const panel of [this._state, this._runs, this._memory, this._branches]) panel.open(summary.thread_id, summary);
    this._event.clear();
    this._head.open(summary, { find: place.find });
    this._openChat();
    if (this._newThread === summary.thread_id) this._chat.focus();
    this._newThread = null;
    byId("travel").hidden = false;
    this._travel.set(null);
    this._travel.setLast(cache.last);
    this._follow(cache);
    const at = place.version !== null ? await this._sequenceOf(place.version) : place.at;
    const stateReady = this._state.load(at);
    const runsReady = this._runs.load().catch(() => null);
    await this._timeline.open(cache, { target: place.event ?? at, suggestions: this._suggestions() });
    if (this._cache !== cache) return;
    performance.mark("thread-shown");
    performance.measure("thread-open", "thread-asked", "thread-shown");
    const [, runs] = await Promise.all([stateReady, runsReady]);
    if (this._cache !== cache) return;
    if (runs) {
      this._timeline.setRuns(runs);
      this._afterRuns(runs);
    }
    byId("columns").dataset.thread = summary.thread_id;
    this._showActivePath();
    this._apply({ ...place, at, version: null }, { at: null, version: null, event: null, run: null, key: null, tab: null });
    if (!place.tab && place.event === null && !place.run && !place.key) this._showTab("state");
  }

  /** A thread that cannot be read: why, and a button to try again. */
  _showProblem(error, place) {
    if (error.isMissing) this._list.remove(place.threadId);
    replace(
      byId("timeline").querySelector(".pages"),
      h("div.empty", {}, icon("warn"), h("h2", {}, "This thread cannot be shown"), h("p", {}, error.message), h("div.buttons", {}, h("button", { type: "button", onclick: () => this._openThread(place) }, "Try again"), h("a", { href: "#/" }, "To the start page"))),
    );
    document.title = "Cognizes Monitor";
  }

  /** The open thread was deleted, for example in another window. What is typed for it goes into a new conversation. */
  _showDeleted(cache) {
    if (cache !== this._cache) return;
    const one = this._summary;
    const restart = this._isHosted() && h("button.primary", { type: "button", onclick: () => this._newConversation(one.app_name, { user: one.user_id, draftOf: one.thread_id }) }, icon("plus"), `New conversation with ${one.app_name}`);
    this._list.remove(one.thread_id);
    this._closeThread();
    this._chat.open(null);
    delete byId("columns").dataset.thread;
    byId("columns").classList.add("is-home");
    byId("columns").dataset.view = "thread";
    replace(
      byId("timeline").querySelector(".pages"),
      h("div.empty", {}, icon("trash"), h("h2", {}, "This thread was deleted"), h("p", { role: "alert" }, `“${titleOf(one)}” is not stored any more.`), h("div.buttons", {}, restart, h("a", { href: "#/" }, "To the start page"))),
    );
    document.title = "Cognizes Monitor";
  }

  _follow(cache) {
    const stop = follow(cache.threadId, {
      after: () => cache.last,
      onItem: (payload) => Number.isInteger(payload.sequence_num) && this._catchUp(cache, payload.sequence_num),
      onOpen: () => this._checkThread(cache),
      // The server also closes the connection when the thread is deleted.
      onState: (open) => (this._showConnection(open), open || this._checkThread(cache)),
      onRewound: () => this._reopen("The server lost the newest events of this thread in a failover. The thread was read again."),
    });
    const client = new SignalPullClient(url("").replace(/\/$/, ""), cache.threadId, { headers: authorization, prepareUrl: ticketed, history: false });
    client.on("content", ({ messageId, text }) => this._cache === cache && !this._paused && this._timeline.stream(messageId, { text, author: this._summary?.app_name }));
    client.on("completed", ({ messageId }) => this._cache === cache && this._timeline.endStream(messageId));
    client.on("state", ({ state }) => this._cache === cache && this._head.setContext(state));
    client.on("refresh", ({ reason }) => reason === "start" && this._cache === cache && this._branches.load());
    client.start();
    this._close = () => {
      stop();
      client.close();
      this._showConnection(true);
    };
  }

  /** Opens the thread again, as it is stored now. */
  _reopen(reason) {
    this._notify(reason);
    this._list.load();
    this._place = { ...this._place, event: null, at: null, version: null };
    go(this._place, { quietly: true });
    this._openThread(this._place);
  }

  /** Says that the page reconnects, as long as it does: what it shows may be old. */
  _showConnection(open) {
    byId("centre").classList.toggle("is-offline", !open);
    byId("reconnecting").hidden = open;
  }

  /** Reads what is new in a thread, and notices that it was deleted. */
  _checkThread(cache) {
    if (cache) this._catchUp(cache, cache.last + 1);
  }

  async _catchUp(cache, sequence) {
    if (cache !== this._cache) return;
    let fresh;
    try {
      fresh = await cache.catchUp(sequence);
    } catch (error) {
      if (error.isMissing) return this._showDeleted(cache);
      this._soon("catch-up", RETRY_MS, () => this._catchUp(cache, sequence));
      return;
    }
    if (!fresh.length || cache !== this._cache) return;
    if (this._paused) {
      this._waitingEvents.push(...fresh);
      this._showPaused();
    } else this._take(fresh);
  }

  /** Shows new events. */
  _take(events) {
    this._timeline.append(events);
    this._travel.setLast(this._cache.last);
    this._summary.last_sequence = this._cache.last;
    if (this._place.at !== null) this._timeline.setPast(this._place.at);
    if (this._place.at === null && events.some((event) => event.actions?.state_delta || event.actions?.$cut)) {
      this._soon("state", 60, () => this._state.load(this._travel.at));
    }
    if (events.some((event) => /^(run_|decision_|monitor_action$|user_message$)/.test(event.event_type))) {
      this._soon("runs", 120, async () => {
        const cache = this._cache;
        const runs = await this._runs.load().catch(() => null);
        if (!runs || cache !== this._cache) return;
        this._timeline.setRuns(runs);
        this._afterRuns(runs);
      });
    }
    this._head.setCount(this._cache.last);
    if (!this._summary.title && !this._summary.first_message) this._nameAfter(events);
    const isBranching = events.some((event) => event.event_type.startsWith("branch"));
    if (isBranching || this._tab === "branches") this._soon("branches", 120, () => this._branches.load());
    if (isBranching || this._hasBranches) this._soon("path", 120, () => this._showActivePath());
  }

  /** Dims the events that are not on the active branch. */
  async _showActivePath() {
    const cache = this._cache;
    try {
      const { ranges } = await get(thread(cache.threadId, "/active-path"));
      if (cache !== this._cache) return;
      this._hasBranches = ranges.length > 1 || ranges.some(([first, last]) => first > 1 || last < cache.last);
      // New events belong to the active branch.
      this._timeline.setActivePath(this._hasBranches ? [...ranges, [cache.last + 1, Infinity]] : null);
    } catch {
      // Asked again with the next change of a branch.
    }
  }

  /** Continues from an event: a branch that starts there becomes the active one. */
  async _branchAt(sequence) {
    if (!(await this._branches.createAndSwitch(sequence))) return;
    this._goTo({ at: null, version: null });
    this._chat.focus();
  }

  /** What follows from the runs' statuses: stop button, status, questions. */
  async _afterRuns(runs) {
    const active = runs.find((run) => ["running", "pending", "waiting"].includes(run.status));
    this._head.setStatus(active?.status ?? (runs[0]?.status === "failed" ? "failed" : "idle"));
    this._chat.setRunning(active?.status === "running");
    this._offerAgain(runs[0]?.status === "failed" ? runs[0] : null);
    const cache = this._cache;
    const asked = ++this._asked;
    try {
      const { questions } = await get(thread(cache.threadId, "/questions"));
      // A later answer that was faster is newer.
      if (cache !== this._cache || asked < this._shown) return;
      this._shown = asked;
      this._questions = questions.map(questionOf);
      this._answers.keepOnly(cache.threadId, questions);
      // What a hosted agent asks for is answered by a new run, so not while one executes; an approval at any time.
      const isBusy = active && active.status !== "waiting";
      const open = isBusy ? questions.filter((question) => question.kind === "approval") : questions;
      this._timeline.setOpenQuestions(open.map((question) => question.id));
      this._runs.setQuestions(open);
    } catch {
      // Asked again with the next event of a run.
    }
  }

  /** Offers to send the message of a failed run again. */
  async _offerAgain(run) {
    const cache = this._cache;
    this._failedRun = run;
    const content = run && (await cache.messageOf(run).catch(() => null));
    if (cache === this._cache && run === this._failedRun) this._chat.setFailed(content);
  }

  /** A thread without a title is named after its first message. */
  _nameAfter(events) {
    const said = events.flatMap(readEvent).find((part) => part.kind === "message" && typeof part.text === "string");
    if (!said) return;
    this._summary.first_message = said.text.slice(0, 200);
    this._head.showTitle();
  }

  _pause(paused) {
    this._paused = paused;
    this._head.setPaused(paused);
    if (!paused) {
      const waiting = this._waitingEvents.splice(0);
      if (waiting.length) this._take(waiting);
      this._timeline.toEnd();
    }
    this._showPaused();
  }

  _showPaused() {
    const box = byId("new-events");
    box.hidden = !this._paused;
    if (this._paused) replace(box, h("button.primary", { type: "button" }, icon("play"), this._waitingEvents.length ? `${counted(this._waitingEvents.length, "new event")}: resume` : "Paused: resume"));
  }

  // Selection and time travel

  _select(sequence, key) {
    if (this._place.event === sequence) this._showEvent(sequence, key);
    this._goTo({ event: sequence, tab: null, key: null, run: null }, key);
    this._showTab("event");
    if (matchMedia("(max-width: 1000px)").matches) byId("columns").dataset.view = "inspector";
  }

  async _showEvent(sequence, key) {
    if (!this._cache) return;
    this._timeline.mark(sequence);
    if (!byId("timeline").querySelector(`[data-seq="${sequence}"]`)) await this._timeline.reveal(sequence);
    await this._event.show(this._cache.threadId, sequence, key);
  }

  _openRun(id) {
    if (this._place.run === id) this._runs.choose(id);
    this._goTo({ run: id, event: null, tab: "run", key: null });
    this._showTab("run");
    if (matchMedia("(max-width: 1000px)").matches) byId("columns").dataset.view = "inspector";
  }

  _travelTo(at) {
    this._travel.set(at);
    this._timeline.setPast(at);
    this._branches.showPoint();
    // While the slider moves, only its newest place is read.
    this._soon("travel", 80, async () => {
      this._state.load(this._travel.at);
      if (this._travel.at) await this._timeline.reveal(this._travel.at, { isMarked: false });
    });
  }

  async _sequenceOf(version) {
    try {
      return (await get(`api/sessions/${this._place.threadId}/state`, { version })).sequence_num;
    } catch (error) {
      this._notify(error.message);
      return null;
    }
  }

  /** A message is sent in the present and at the end of the timeline. */
  _beforeSending() {
    if (this._place.at !== null) this._goTo({ at: null, version: null });
    this._timeline.toEnd();
  }

  // New threads

  /** Starts a conversation, with what was typed for the thread `draftOf`. */
  async _newConversation(agent = this._list.chosenAgent, { user = this._list.chosenUser, draftOf = null } = {}) {
    try {
      const created = await post("api/sessions", { app_name: agent, user_id: user });
      if (draftOf) this._chat.moveDraft(draftOf, created.thread_id);
      this._newThread = created.thread_id;
      go({ threadId: created.thread_id });
      this._list.pulse(created.thread_id);
    } catch (error) {
      this._notify(error.message);
    }
  }

  async _fork(sequence) {
    try {
      const fork = await post(`api/sessions/${this._cache.threadId}/fork`, { at_sequence: sequence });
      go({ threadId: fork.thread_id });
      this._list.pulse(fork.thread_id);
    } catch (error) {
      this._notify(error.message);
    }
  }

  /** Messages to begin with, for a thread of a hosted agent. */
  _suggestions() {
    if (!this._isHosted()) return [];
    return this._summary.app_name === "demo" ? DEMO_SUGGESTIONS : SUGGESTIONS;
  }

  _isHosted() {
    return this._may("write") && (this._agents ?? []).some((agent) => agent.name === this._summary?.app_name);
  }

  _openChat() {
    this._chat.open(this._isHosted() ? this._summary : null);
    if (this._runs.runs.length) this._afterRuns(this._runs.runs);
  }

  // Tabs, theme, sign-in, notices, keys

  _buildTabs(answering) {
    const names = { state: "State", event: "Event", run: "Run", memory: "Memory", branches: "Branches" };
    this._panels = {};
    const bar = byId("tabs");
    bar.before(h("button.icon-button.only-narrow", { type: "button", "aria-label": "Back to the timeline", onclick: () => (byId("columns").dataset.view = "thread") }, icon("back")));
    for (const name of TABS) {
      bar.append(h("button.tab", { type: "button", role: "tab", id: `tab-${name}`, "aria-controls": `panel-${name}`, onclick: () => this._chooseTab(name) }, names[name]));
      this._panels[name] = h("div.panel", { role: "tabpanel", id: `panel-${name}`, "aria-labelledby": `tab-${name}`, tabindex: "0" });
      byId("panels").append(this._panels[name]);
    }
    bar.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!step) return;
      const next = TABS[(TABS.indexOf(this._tab) + step + TABS.length) % TABS.length];
      this._chooseTab(next);
      byId(`tab-${next}`).focus();
    });
    const showKey = (key) => {
      this._goTo({ key, tab: key ? "state" : null, event: null });
      this._state.showKey(key);
    };
    const reveal = (sequence) => {
      this._goTo({ event: sequence, tab: "state" });
      this._timeline.reveal(sequence);
    };
    this._state = new StatePanel(this._panels.state, { showKey, reveal, openRun: (id) => this._openRun(id) });
    this._event = new EventPanel(this._panels.event, { travel: (at) => (this._goTo({ at, tab: "state", event: null }), this._showTab("state")), openRun: (id) => this._openRun(id), fork: (sequence) => this._fork(sequence) });
    this._runs = new RunPanel(this._panels.run, { ...answering, openRun: (id) => this._openRun(id), failed: (error) => this._notify(error.message), waitOf: (callId) => this._timeline.waitOf(callId) });
    this._memory = new MemoryPanel(this._panels.memory, { openRun: (id) => this._openRun(id), failed: (error) => this._notify(error.message) });
    this._branches = new BranchPanel(this._panels.branches, { failed: (error) => this._notify(error.message), point: () => this._travel.at ?? this._cache?.last ?? 0, fork: (sequence) => this._fork(sequence), switched: () => this._showActivePath(), loaded: (branches) => this._head.setBranch(branches.length > 1 ? (branches.find((one) => one.is_active)?.name ?? null) : null) });
    this._showTab("state");
  }

  _chooseTab(name) {
    this._goTo({ tab: name });
    this._showTab(name);
  }

  _showTab(name) {
    if (!TABS.includes(name)) return;
    this._tab = name;
    byId("columns").dataset.tab = name;
    for (const one of TABS) {
      byId(`tab-${one}`).setAttribute("aria-selected", String(one === name));
      byId(`tab-${one}`).tabIndex = one === name ? 0 : -1;
      this._panels[one].hidden = one !== name;
    }
    if (name === "memory") this._memory.show();
    if (name === "branches") this._branches.load();
  }

  _buildTheme() {
    const button = byId("theme");
    const dark = matchMedia("(prefers-color-scheme: dark)");
    const current = () => localStorage.getItem("cognizes.theme") ?? (dark.matches ? "dark" : "light");
    const show = () => {
      document.documentElement.dataset.theme = current();
      replace(button, icon(current() === "dark" ? "sun" : "moon"));
    };
    button.addEventListener("click", () => {
      localStorage.setItem("cognizes.theme", current() === "dark" ? "light" : "dark");
      show();
    });
    dark.addEventListener("change", show);
    show();
  }

  _buildSignIn() {
    const dialog = byId("sign-in-dialog");
    const button = byId("sign-in");
    const input = h("input", { type: "password", id: "api-key", autocomplete: "off", placeholder: "API key", "aria-label": "API key" });
    const problem = h("p.is-error", { role: "alert", hidden: true });
    const signOut = h("button", { type: "button", hidden: !savedKey(), onclick: () => (saveKey(""), location.reload()) }, "Sign out");
    const form = h("form.sign-in", { method: "dialog" }, h("h2", {}, savedKey() ? "Use another key" : "This server needs a key"), h("p", {}, "The page keeps it for this tab only. ", h("code", {}, "cognizes keys create --app NAME"), " creates a key of one app, ", h("code", {}, "--all-apps"), " a key of all apps."), input, problem, h("div.buttons", {}, h("button.primary", { type: "submit" }, "Sign in"), signOut, h("button", { type: "button", onclick: () => dialog.close() }, "Cancel")));
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      const before = savedKey();
      saveKey(input.value.trim());
      try {
        await get("api/access/me");
      } catch (error) {
        saveKey(before);
        problem.hidden = false;
        problem.textContent = error.status === 401 ? "The server does not know this key. It may be mistyped, expired or revoked." : error.message;
        input.select();
        return;
      }
      dialog.close();
      location.reload();
    });
    dialog.append(form);
    replace(button, icon("key"));
    button.hidden = !savedKey();
    button.addEventListener("click", () => dialog.showModal());
    onSignInNeeded(() => {
      button.hidden = false;
      if (!dialog.open) dialog.showModal();
    });
  }

  _notify(message) {
    const notice = h("div.notice", {}, icon("warn"), h("span", {}, message), h("button.link", { type: "button", "aria-label": "Dismiss", onclick: () => notice.remove() }, icon("close")));
    byId("notices").append(notice);
    setTimeout(() => notice.remove(), 8000);
  }

  _onKey(event) {
    if (document.querySelector("dialog[open]")) return;
    const isTyping = event.target.closest("input:not([type=range]), textarea, select");
    if (event.key === "/" && !isTyping) {
      event.preventDefault();
      this._list.focusSearch();
    } else if (event.key === "Escape") {
      this._pulse.close();
      this._inbox.close();
      if (this._place.at !== null && !isTyping) this._goTo({ at: null, version: null });
    } else if (event.target === byId("timeline") && ["ArrowDown", "ArrowUp"].includes(event.key) && this._cache) {
      event.preventDefault();
      const from = this._place.event ?? this._cache.last + 1;
      const next = Math.min(this._cache.last, Math.max(1, from + (event.key === "ArrowDown" ? 1 : -1)));
      this._select(next);
      this._timeline.reveal(next);
    }
  }

  _soon(name, ms, action) {
    this._timers ??= {};
    if (this._timers[name]) return;
    this._timers[name] = setTimeout(() => {
      this._timers[name] = null;
      if (this._cache) action();
    }, ms);
  }
}

new Monitor().start();
