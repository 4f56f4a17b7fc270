// A thread of a hosted agent, kept up to date: messages, live text, state, run and open questions.
//
// The run belongs to the server. A lost connection, a reload of the page or a restart of the server does not end it: the
// thread connects again and receives a snapshot with the text so far, then the rest. `AgentThread` needs no framework;
// `subscribe` and `getSnapshot` are what `useSyncExternalStore` of React, or a store of any other library, expects.

import { ApiError, CognizesError, ConflictError, ConnectionLostError, NotFoundError } from "./errors.js";
import { followEvents, mayReopen, readEvents, type ConnectionState } from "./event_stream.js";
import { parseFrame } from "./follow.js";
import { FoldedThread, messageText, type Frame, type Interrupt, type Message } from "./frames.js";
import type { Context, ResumeEntry, RunAgentInput, Tool, UserMessage } from "./rest_types.js";
import { encodeSegment, isTemporary, newId, pause, retryDelay, type RawRequest, type Transport } from "./transport.js";

export type ThreadRunStatus = "idle" | "running" | "waiting" | "completed" | "failed" | "cancelled";

/** A thread at one moment. It never changes; a change makes a new one. */
export interface ThreadSnapshot {
  /** Oldest first. The text of a message that is being written grows. */
  readonly messages: readonly Message[];
  /** The text that is being written now; "" if none is. */
  readonly liveText: string;
  /** Ids of messages that are being written. */
  readonly openMessageIds: ReadonlySet<string>;
  readonly state: Readonly<Record<string, unknown>>;
  /** The active run, or the last one that this object has seen. `waiting`: `interrupts` are open. */
  readonly runStatus: ThreadRunStatus;
  readonly runId: string | null;
  /** Questions to a person; `answer` them. */
  readonly interrupts: readonly Interrupt[];
  /** Calls of tools of the client that have no result yet; `respond` to them. */
  readonly pendingToolCallIds: readonly string[];
  /** `connecting` until the first snapshot is there. */
  readonly connection: ConnectionState;
  /** Why the last run failed, or why the thread cannot be read. */
  readonly error: Error | null;
  /** Whether `loadOlder` has older messages. */
  readonly hasOlder: boolean;
}

export interface ThreadOptions {
  /** The user, for a key that is bound to no user. */
  userId?: string;
  /** Tools of the client, offered to the agent in each run. */
  tools?: Tool[];
  context?: Context[];
  /** Follow runs that other clients start on the thread; true by default. It needs a thread id that is unique among the
   * threads of the caller. */
  watch?: boolean;
  /** Errors that do not end the thread, such as a watch that is refused. */
  onError?: (error: Error) => void;
  /** See `StreamOptions`. */
  silenceMs?: number;
  firstDelayMs?: number;
  longestDelayMs?: number;
}

export interface SendOptions {
  /** Keys of the session's own state that the client changes. */
  state?: Record<string, unknown>;
  /** What to do while another run executes: refuse (the default of the server), wait for its end, or cancel it. */
  onBusy?: "reject" | "queue" | "cancel";
  forwardedProps?: Record<string, unknown>;
  /** The id of the message; a new one by default. */
  messageId?: string;
}

/** How a run ended. `waiting`: it asks a person. `detached`: the thread was stopped; the run continues on the server. */
export interface RunResult {
  runId: string | null;
  status: "completed" | "failed" | "cancelled" | "waiting" | "detached";
  error: Error | null;
}

const OLDER_MESSAGES = "cognizes.older_messages";
const PROTOCOL_VERSION = "1.0.0";
const MOST_ATTEMPTS = 5;
/** Ends of a stream that are not ends of the run. */
const BROKEN_STREAM = new Set(["STREAM_ENDED", "STREAM_FAILED", "SERVER_STOPPED", "FEED_REWOUND"]);
const INITIAL: ThreadSnapshot = {
  messages: [],
  liveText: "",
  openMessageIds: new Set(),
  state: {},
  runStatus: "idle",
  runId: null,
  interrupts: [],
  pendingToolCallIds: [],
  connection: "connecting",
  error: null,
  hasOlder: false,
};

const UNKNOWN_END: RunResult = Object.freeze({ runId: null, status: "completed", error: null });

interface Input {
  messages: Message[];
  resume?: ResumeEntry[];
  options: SendOptions;
}

interface Start {
  input: Input;
  /** Whether the stream of another run was left for it: the end of that run is read afterwards. */
  leaves: boolean;
  accept: () => void;
  refuse: (error: Error) => void;
}

/** Finds out whether an input arrived at the server, so that it is neither lost nor executed twice.
 *
 * An input is sent. If the connection is lost before the first frame, the next connection only reads the thread: the
 * snapshot says whether the server has the input, and if not, it is sent again. */
class Delivery {
  isDone = false;
  /** Whether the input is to be sent with the next connection. */
  isDue = true;
  readonly #input: Input;
  #attempts = 0;
  #held: Frame[] = [];
  #conflict: ConflictError | null = null;

  constructor(input: Input) {
    this.#input = input;
  }

  /** Look at a frame of the connection that sent the input (`isPost`), or of one that reads the thread. */
  check(frame: Frame, isPost: boolean, connectId: string): "absent" | "present" | "unknown" {
    const found = isPost ? true : this.#finds(frame, connectId);
    if (found === undefined) {
      this.#held.push(frame);
      return "unknown";
    }
    this.isDone = found;
    if (found) return "present";
    this.#held = [];
    if (this.#conflict) throw this.#conflict;
    this.isDue = true;
    return "absent";
  }

  /** The frames before the one that decided. */
  takeHeld(): Frame[] {
    this.isDue = false;
    const held = this.#held;
    this.#held = [];
    return held;
  }

  /** Return whether to go on after a failed request, and decide how. */
  mayRepeat(error: Error, isPost: boolean): boolean {
    if (this.isDone || !isPost) return false;
    this.#attempts += 1;
    if (error instanceof ConflictError && this.#attempts > 1) this.#conflict = error; // perhaps with the lost attempt
    else if (!isTemporary(error) || this.#attempts > MOST_ATTEMPTS) return false;
    this.isDue = false;
    return true;
  }

  #finds(frame: Frame, connectId: string): boolean | undefined {
    const [message] = this.#input.messages;
    if (message) {
      if (frame.type !== "MESSAGES_SNAPSHOT") return undefined;
      return frame.messages.some((one) => one.id === message.id || (one.role === "tool" && message.role === "tool" && one.toolCallId === message.toolCallId));
    }
    // Answers: a run continues with them, or the questions are closed.
    if (frame.type === "RUN_STARTED" && frame.runId !== connectId) return true;
    if (frame.type !== "RUN_FINISHED") return undefined;
    const open = frame.outcome?.type === "interrupt" ? frame.outcome.interrupts : [];
    return !this.#input.resume?.some((answer) => open.some((one) => one.id === answer.interruptId));
  }
}

export class AgentThread {
  readonly agent: string;
  readonly threadId: string;
  readonly #transport: Transport;
  readonly #options: ThreadOptions;
  readonly #folded = new FoldedThread();
  readonly #listeners = new Set<() => void>();
  #snapshot: ThreadSnapshot = INITIAL;
  #values: Omit<ThreadSnapshot, "messages" | "liveText" | "openMessageIds" | "state"> = INITIAL;
  #isDirty = false;
  #notifying: ReturnType<typeof setTimeout> | undefined;
  #life: AbortController | null = null;
  #following: AbortController | null = null;
  #done: Promise<RunResult> | null = null;
  #answers = new Map<string, ResumeEntry>();
  /** Results of client tools that wait for the other results of the run. */
  #results = new Map<string, Message>();
  #before: readonly Message[] = [];
  #olderBefore: number | null = null;
  #wakeWatch: (() => void) | null = null;

  constructor(transport: Transport, agent: string, threadId: string, options: ThreadOptions = {}) {
    if (!threadId) throw new TypeError("a thread needs an id; newId() makes a new one");
    this.#transport = transport;
    this.agent = agent;
    this.threadId = threadId;
    this.#options = options;
  }

  /** Call the listener after changes; return a function that ends it. Many changes at once are one call. */
  subscribe = (listener: () => void): (() => void) => {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  };

  getSnapshot = (): ThreadSnapshot => {
    if (this.#isDirty) {
      this.#isDirty = false;
      const { messages, open, state } = this.#folded;
      const written = messages.findLast((message) => message.role === "assistant" && open.has(message.id));
      this.#snapshot = { ...this.#values, messages, state, openMessageIds: open, liveText: written ? messageText(written) : "" };
    }
    return this.#snapshot;
  };

  /** Read the thread and follow its run, if one is active. Harmless if it has started. */
  start = (): void => {
    if (this.#life) return;
    const life = (this.#life = new AbortController());
    this.#set({ connection: "connecting", error: null });
    void this.#connect();
    if (this.#options.watch ?? true) void this.#watch(life.signal);
  };

  /** Close all connections. Runs continue on the server. The thread may be started again. */
  stop = (): void => {
    this.#life?.abort();
    this.#life = null;
    this.#following?.abort();
    this.#following = null;
    clearTimeout(this.#notifying);
    this.#notifying = undefined;
    this.#values = { ...this.#values, connection: "closed" };
    this.#isDirty = true;
  };

  /** Send a message of the user and follow the run; return how it ended. An input that the server refuses is an error. */
  send = async (content: string | UserMessage["content"], options: SendOptions = {}): Promise<RunResult> => {
    const message = { id: options.messageId ?? newId(), role: "user", content } as Message;
    return this.#run({ messages: [message], options });
  };

  /** Answer an open question. The run continues when all its questions are answered. */
  answer = async (interruptId: string, payload: unknown, options: SendOptions & { cancelled?: boolean } = {}): Promise<RunResult> => {
    const { interrupts, runId } = this.#values;
    if (!interrupts.some((one) => one.id === interruptId)) throw new CognizesError(`there is no open question ${interruptId}`);
    const status = options.cancelled ? "cancelled" : "resolved";
    this.#answers.set(interruptId, { interruptId, status, payload });
    const open = interrupts.filter((one) => !this.#answers.has(one.id));
    if (open.length) {
      this.#set({ interrupts: open });
      return { runId, status: "waiting", error: null };
    }
    const resume = [...this.#answers.values()];
    this.#set({ interrupts: [] });
    try {
      const result = await this.#run({ messages: [], resume, options });
      this.#answers.clear();
      return result;
    } catch (error) {
      this.#answers.delete(interruptId);
      this.#set({ interrupts, runStatus: "waiting" });
      throw error;
    }
  };

  /** Give the result of a call of a client tool: a text, or any JSON value. The agent continues when all calls of
   * `pendingToolCallIds` have a result; before that the status of the returned result is `waiting`. */
  respond = async (toolCallId: string, result: unknown, options: SendOptions = {}): Promise<RunResult> => {
    const { pendingToolCallIds, runId } = this.#values;
    const content = typeof result === "string" ? result : JSON.stringify(result);
    this.#results.set(toolCallId, { id: options.messageId ?? newId(), role: "tool", toolCallId, content } as Message);
    const pending = pendingToolCallIds.filter((id) => !this.#results.has(id));
    if (pending.length) {
      this.#set({ pendingToolCallIds: pending });
      return { runId, status: "waiting", error: null };
    }
    const results = [...this.#results];
    this.#results.clear();
    this.#set({ pendingToolCallIds: [] });
    try {
      return await this.#run({ messages: results.map(([, message]) => message), options });
    } catch (error) {
      for (const [id, message] of results) if (id !== toolCallId) this.#results.set(id, message);
      this.#set({ pendingToolCallIds });
      throw error;
    }
  };

  /** Cancel the active run, or the one that waits. Return false if there is none. */
  cancel = async (): Promise<boolean> => {
    const path = `/agui/${encodeSegment(this.agent)}/cancel`;
    const answer = await this.#transport.json({ method: "POST", path, json: { threadId: this.threadId }, repeatable: true, headers: this.#headers() });
    const { cancelled } = answer as { cancelled: boolean };
    if (cancelled && this.#values.runStatus === "waiting") {
      this.#answers.clear();
      this.#set({ interrupts: [], runStatus: "cancelled" });
    }
    return cancelled;
  };

  /** Load the page of messages before the oldest one; return whether there are more. */
  loadOlder = async (): Promise<boolean> => {
    const before = this.#olderBefore;
    if (before === null) return false;
    const path = `/agui/${encodeSegment(this.agent)}/threads/${encodeSegment(this.threadId)}/messages`;
    const signal = this.#life?.signal;
    const page = await this.#transport.json({ method: "GET", path, query: { before }, headers: this.#headers(), signal });
    const { messages, before: older } = page as { messages: Message[]; before: number | null };
    if (this.#olderBefore !== before) return this.#olderBefore !== null; // a snapshot came first
    const known = new Set(this.#folded.messages.map((message) => message.id));
    this.#folded.messages = [...messages.filter((message) => !known.has(message.id)), ...this.#folded.messages];
    this.#olderBefore = older;
    this.#set({ hasOlder: older !== null });
    return older !== null;
  };

  // Connections.

  #headers(): Record<string, string> {
    return this.#options.userId === undefined ? {} : { "X-User-ID": this.#options.userId };
  }

  #request(path: string, json: unknown): RawRequest {
    return { method: "POST", path: `/agui/${encodeSegment(this.agent)}${path}`, json, headers: this.#headers() };
  }

  /** Follow the thread from a snapshot on. A connection that is open stays. */
  #connect(): Promise<RunResult> {
    if (this.#following && this.#done) return this.#done;
    return this.#begin((signal) => this.#follow(signal));
  }

  /** Start a run with an input, and follow it. */
  async #run(input: Input): Promise<RunResult> {
    this.#life ??= new AbortController();
    const { runStatus } = this.#values;
    this.#following?.abort();
    this.#folded.fold({ type: "RUN_STARTED", threadId: this.threadId, runId: "", input: { messages: input.messages } });
    this.#set({ runStatus: "running", error: null });
    let accept!: () => void;
    let refuse!: (error: Error) => void;
    const accepted = new Promise<void>((resolve, reject) => ([accept, refuse] = [resolve, reject]));
    const done = this.#begin((signal) => this.#follow(signal, { input, leaves: runStatus === "running", accept, refuse }));
    try {
      await accepted;
    } catch (error) {
      const refused = new Set(input.messages.map((message) => message.id));
      this.#folded.messages = this.#folded.messages.filter((message) => !refused.has(message.id));
      this.#set({ runStatus });
      // A run that this object does not know may be active, or the one that it followed.
      if (runStatus === "running" || error instanceof ConflictError) void this.#connect();
      throw error;
    }
    this.#wakeWatch?.();
    return done;
  }

  #begin(follow: (signal: AbortSignal) => Promise<RunResult>): Promise<RunResult> {
    const following = (this.#following = new AbortController());
    const done = (this.#done = follow(following.signal).finally(() => {
      if (this.#following === following) this.#following = null;
    }));
    return done;
  }

  /** Follow the thread until its run ends, over any number of connections. It never rejects. */
  async #follow(signal: AbortSignal, start?: Start): Promise<RunResult> {
    const delivery = start && new Delivery(start.input);
    const runId = newId();
    let ended: RunResult | null = null;
    let orphaned = 0;
    for (let failures = 0; ; ) {
      const connectId = `connect-${newId()}`;
      const isPost = delivery?.isDue ?? false;
      const request =
        isPost && start
          ? this.#request("", this.#body(start.input, runId))
          : this.#request("/connect", { threadId: this.threadId, runId: connectId, protocolVersion: PROTOCOL_VERSION });
      let failure: Error = new ConnectionLostError("the server closed the stream");
      try {
        for await (const event of readEvents(this.#transport, request, { signal, silenceMs: this.#options.silenceMs })) {
          const frame = parseFrame(event);
          if (delivery && !delivery.isDone) {
            if (delivery.check(frame, isPost, connectId) === "absent") break;
            if (!delivery.isDone) continue;
            start?.accept();
            if (!isPost) this.#set({ runId });
            for (const held of delivery.takeHeld()) this.#take(held, connectId);
          }
          failures = 0;
          const result: RunResult | null = ended ? this.#takeAfterEnd(frame, ended) : this.#take(frame, connectId);
          if (result && isPost && start?.leaves) ended = result;
          else if (result && result !== UNKNOWN_END) return result;
          else if (result) {
            // The snapshot may be older than the end of the run: another one is read after it.
            ended = await this.#readEnd(signal);
            if (ended) break;
            orphaned = Math.min(orphaned + 1, 3); // up to two seconds between snapshots
            failure = new ConnectionLostError("the run has no server; another one will continue or fail it");
          }
        }
        // The server does not have the input: send it again. Or the run is over, and a snapshot follows.
        if (delivery?.isDue || ended) continue;
      } catch (error) {
        failure = error as Error;
      }
      const isOpen = start ? delivery?.isDone : this.#values.connection !== "connecting";
      if (!signal.aborted && !delivery?.mayRepeat(failure, isPost) && !this.#mayReopen(failure, isOpen ?? false, failures)) {
        start?.refuse(failure);
        this.#set({ error: failure, connection: start && !delivery?.isDone ? this.#values.connection : "closed" });
        return { runId: null, status: "failed", error: failure };
      }
      if (!signal.aborted && this.#values.connection === "open") this.#set({ connection: "reconnecting" });
      const { firstDelayMs = 250, longestDelayMs = 10_000 } = this.#options;
      await pause(retryDelay(orphaned + failures++, failure, firstDelayMs, longestDelayMs), signal).catch(() => undefined);
      if (signal.aborted) {
        start?.accept();
        return { runId: this.#values.runId, status: "detached", error: null };
      }
    }
  }

  /** Apply a frame of the snapshot that is read after the end of a run; return the end with the first frame behind it. */
  #takeAfterEnd(frame: Frame, ended: RunResult): RunResult | null {
    if (!["RUN_STARTED", "STATE_SNAPSHOT", "MESSAGES_SNAPSHOT", "CUSTOM"].includes(frame.type)) {
      return this.#end(ended.status as RunResult["status"] & ThreadRunStatus, ended.error);
    }
    if (frame.type !== "RUN_STARTED") this.#take(frame, "");
    return null;
  }

  /** Read how a run ended while the connection was lost; null if it has not: its server was killed, and its lease expires. */
  async #readEnd(signal: AbortSignal): Promise<RunResult | null> {
    const { runId } = this.#values;
    let status: RunResult["status"] & ThreadRunStatus = "completed";
    let error: Error | null = null;
    try {
      const run = await this.#transport.call("GET /api/runs/{run_id}", { path: { run_id: runId ?? "" } }, { signal });
      if (run.status === "running" || run.status === "pending") return null;
      if (run.status === "failed" || run.status === "cancelled" || run.status === "waiting") status = run.status;
      if (run.status === "failed") error = new CognizesError(run.error ?? "the run failed");
    } catch (failure) {
      if (!signal.aborted) this.#report(failure as Error);
    }
    return { runId, status, error };
  }

  /** Return whether to connect again: without a limit once a snapshot was there, a few times before. */
  #mayReopen(error: Error, isOpen: boolean, failures: number): boolean {
    return isOpen ? mayReopen(error, true) : failures < (this.#transport.options.retries ?? 4) && isTemporary(error);
  }

  #body(input: Input, runId: string): Partial<RunAgentInput> {
    const { state, forwardedProps, onBusy } = input.options;
    const policy = onBusy ? { cognizes: { onBusy } } : {};
    return {
      threadId: this.threadId,
      runId,
      protocolVersion: PROTOCOL_VERSION,
      messages: input.messages as RunAgentInput["messages"],
      state: state ?? {},
      tools: this.#options.tools ?? [],
      context: this.#options.context ?? [],
      forwardedProps: { ...forwardedProps, ...policy },
      ...(input.resume ? { resume: input.resume } : {}),
    };
  }

  // Frames.

  /** Apply a frame; return the result if it ends the run. */
  #take(frame: Frame, connectId: string): RunResult | null {
    if (frame.type === "RUN_ERROR" && BROKEN_STREAM.has(frame.code ?? "")) return null;
    if (frame.type === "MESSAGES_SNAPSHOT") this.#before = this.#folded.messages;
    let isChanged = false;
    try {
      isChanged = this.#folded.fold(frame);
    } catch (error) {
      this.#report(new CognizesError(`a ${frame.type} frame does not apply`, { cause: error }));
    }
    switch (frame.type) {
      case "RUN_STARTED":
        if (frame.runId !== connectId) {
          this.#results.clear(); // the agent continues without them
          this.#set({ runId: frame.runId, runStatus: "running", interrupts: [], pendingToolCallIds: [] });
        }
        break;
      case "MESSAGES_SNAPSHOT":
        this.#olderBefore = null;
        this.#set({ connection: "open", error: null, hasOlder: false });
        break;
      case "CUSTOM":
        if (frame.name === OLDER_MESSAGES) this.#keepOlder((frame.value as { before: number }).before);
        break;
      case "RUN_ERROR":
        this.#folded.closeAll();
        return this.#end("failed", new CognizesError(frame.message));
      case "RUN_FINISHED":
        this.#folded.closeAll();
        return this.#finish(frame, connectId);
    }
    if (isChanged) this.#changed();
    if (this.#values.connection !== "open") this.#set({ connection: "open" });
    return null;
  }

  #finish(frame: Extract<Frame, { type: "RUN_FINISHED" }>, connectId: string): RunResult {
    const { outcome } = frame;
    const called = outcome?.type === "success" ? (outcome.pendingToolCallIds ?? []) : [];
    const pendingToolCallIds = called.filter((id) => !this.#results.has(id));
    if (outcome?.type === "interrupt") {
      const interrupts = outcome.interrupts.filter((one) => !this.#answers.has(one.id));
      return this.#end("waiting", null, { interrupts, pendingToolCallIds });
    }
    if (frame.runId === connectId) {
      // No run is active. One that was has ended while the connection was lost.
      this.#set({ interrupts: [], pendingToolCallIds, connection: "open" });
      const { runStatus, runId, error } = this.#values;
      if (runStatus === "running") return UNKNOWN_END;
      if (runStatus === "waiting") this.#set({ runStatus: "completed" });
      return { runId, status: "completed", error };
    }
    return this.#end(outcome?.type === "cancelled" ? "cancelled" : "completed", null, { interrupts: [], pendingToolCallIds });
  }

  #end(status: RunResult["status"] & ThreadRunStatus, error: Error | null, more: Partial<ThreadSnapshot> = {}): RunResult {
    this.#set({ runStatus: status, error, connection: "open", ...more });
    return { runId: this.#values.runId, status, error };
  }

  /** A snapshot without the oldest messages: keep those that were loaded before it. */
  #keepOlder(before: number): void {
    const first = this.#folded.messages[0];
    const at = first ? this.#before.findIndex((message) => message.id === first.id) : -1;
    if (at > 0) this.#folded.messages = [...this.#before.slice(0, at), ...this.#folded.messages];
    else this.#olderBefore = before;
    this.#set({ hasOlder: this.#olderBefore !== null });
  }

  // Runs of other clients.

  /** Connect when a signal announces something that this object does not have. */
  async #watch(signal: AbortSignal): Promise<void> {
    const { firstDelayMs, longestDelayMs, silenceMs } = this.#options;
    const path = `/contexts/${encodeSegment(this.threadId)}/events`;
    const headers = this.#headers();
    while (!signal.aborted) {
      try {
        const next = (id: string): RawRequest => ({ method: "GET", path, headers: id ? { ...headers, "Last-Event-ID": id } : headers });
        for await (const event of followEvents(this.#transport, next, { signal, firstDelayMs, longestDelayMs, silenceMs })) {
          if (event.type === "signal" && !this.#following && this.#isNews(event.data)) void this.#connect();
        }
      } catch (error) {
        if (signal.aborted) return;
        if (!(error instanceof NotFoundError)) return this.#report(error as Error);
        // A thread without a message does not exist yet.
        const stopped = new Promise<void>((resolve) => signal.addEventListener("abort", () => resolve(), { once: true }));
        await Promise.race([stopped, new Promise<void>((resolve) => (this.#wakeWatch = resolve))]);
        this.#wakeWatch = null;
      }
    }
  }

  #isNews(data: string): boolean {
    let signal: { type?: string; new_state?: string; message_id?: string; messages_removed?: boolean; is_cut?: boolean };
    try {
      signal = JSON.parse(data) as typeof signal;
    } catch {
      return false; // not a signal: the next one announces the same data
    }
    if (signal.is_cut || signal.messages_removed) return true;
    if (signal.type === "state_changed") return signal.new_state !== "Idle" && this.#values.runStatus !== "waiting" && signal.new_state !== "Failed";
    return ["message_created", "content_delta", "message_completed"].includes(signal.type ?? "") && !this.#folded.find(signal.message_id ?? "");
  }

  // Listeners.

  #set(values: Partial<ThreadSnapshot>): void {
    this.#values = { ...this.#values, ...values };
    this.#changed();
  }

  #changed(): void {
    this.#isDirty = true;
    if (this.#notifying !== undefined || !this.#life) return;
    this.#notifying = setTimeout(() => {
      this.#notifying = undefined;
      for (const listener of this.#listeners) listener();
    }, 0);
  }

  #report(error: Error): void {
    if (this.#options.onError) this.#options.onError(error);
    else if (!(error instanceof ApiError || error instanceof ConnectionLostError)) this.#set({ error });
  }
}
