// The resources of the REST API: sessions, timelines, runs, memory, attachments and usage.

import { CognizesError, ConflictError, NotFoundError } from "./errors.js";
import { followFrames, type FollowedFrame, type FollowOptions } from "./follow.js";
import { encodeSegment, newId, type CallOptions, type OperationBody, type OperationQuery, type OperationResponse, type Transport } from "./transport.js";
import type {
  Appended,
  AttachmentView,
  EventView,
  FoundRuns,
  Hits,
  MemoryView,
  MessageView,
  NewEvent,
  NewFact,
  NewNote,
  NewRun,
  NewSession,
  NewWait,
  RunDetail,
  RunView,
  SessionChange,
  SessionView,
  Signalled,
  StateView,
  TimelineView,
  UsageView,
} from "./rest_types.js";

/** The app and the user that memories belong to. */
export interface Owner {
  app_name: string;
  user_id: string;
  agent_id?: string;
}

class Resource {
  constructor(protected readonly transport: Transport) {}
}

/** Sessions: threads with events, messages and state. A thread is named by its `thread_id`. */
export class Sessions extends Resource {
  async create(session: NewSession, options?: CallOptions): Promise<SessionView> {
    return this.transport.call("POST /api/sessions", { body: session }, options);
  }

  async get(threadId: string, options?: CallOptions): Promise<SessionView> {
    const session = await this.transport.call("GET /api/sessions/{thread_id}", { path: { thread_id: threadId } }, { ...options, thread: threadId });
    this.transport.noteSeen(threadId, session.last_sequence);
    return session;
  }

  /** One page, newest first; continue with `cursor: next_cursor`. */
  async list(query: OperationQuery<"GET /api/sessions">, options?: CallOptions): Promise<OperationResponse<"GET /api/sessions">> {
    return this.transport.call("GET /api/sessions", { query }, options);
  }

  /** All sessions, page by page. */
  async *iterate(query: OperationQuery<"GET /api/sessions">, options?: CallOptions): AsyncGenerator<SessionView, void, undefined> {
    let cursor = query.cursor;
    do {
      const page = await this.list({ ...query, cursor }, options);
      yield* page.sessions;
      cursor = page.next_cursor;
    } while (cursor);
  }

  /** Change the title or the metadata. */
  async change(threadId: string, change: SessionChange, options?: CallOptions): Promise<SessionView> {
    return this.transport.call("PATCH /api/sessions/{thread_id}", { path: { thread_id: threadId }, body: change }, { repeatable: true, ...options });
  }

  async delete(threadId: string, options?: CallOptions): Promise<void> {
    await this.transport.call("DELETE /api/sessions/{thread_id}", { path: { thread_id: threadId } }, options);
    this.transport.forgetSeen(threadId);
  }

  /** Append an event. Without an `id` it gets one, so that the call can be repeated: the server stores it once. */
  async append(threadId: string, event: NewEvent, options?: CallOptions): Promise<Appended> {
    const body = event.id ? event : { ...event, id: newId() };
    const appended = await this.transport.call("POST /api/sessions/{thread_id}/events", { path: { thread_id: threadId }, body }, { repeatable: true, ...options });
    this.transport.noteSeen(threadId, appended.sequence_num);
    return appended;
  }

  /** One page of events: `after` a sequence, or the `recent` ones, or those `before` one. */
  async events(
    threadId: string,
    query: OperationQuery<"GET /api/sessions/{thread_id}/events"> = {},
    options?: CallOptions,
  ): Promise<OperationResponse<"GET /api/sessions/{thread_id}/events">> {
    const page = await this.transport.call("GET /api/sessions/{thread_id}/events", { path: { thread_id: threadId }, query }, { ...options, thread: threadId });
    this.transport.noteSeen(threadId, page.events.at(-1)?.sequence_num);
    return page;
  }

  /** All events after a sequence that exist now, with one page in memory at a time. */
  async *iterateEvents(threadId: string, query: { after?: number; limit?: number } = {}, options?: CallOptions): AsyncGenerator<EventView, void, undefined> {
    let after = query.after ?? 0;
    for (let more = true; more; ) {
      const page = await this.events(threadId, { ...query, after }, options);
      yield* page.events;
      after = page.events.at(-1)?.sequence_num ?? after;
      more = page.has_more && page.events.length > 0;
    }
  }

  async messages(
    threadId: string,
    query: OperationQuery<"GET /api/sessions/{thread_id}/messages"> = {},
    options?: CallOptions,
  ): Promise<OperationResponse<"GET /api/sessions/{thread_id}/messages">> {
    return this.transport.call("GET /api/sessions/{thread_id}/messages", { path: { thread_id: threadId }, query }, { ...options, thread: threadId });
  }

  async *iterateMessages(threadId: string, query: { after?: number; limit?: number } = {}, options?: CallOptions): AsyncGenerator<MessageView, void, undefined> {
    let after = query.after ?? 0;
    for (let more = true; more; ) {
      const page = await this.messages(threadId, { ...query, after }, options);
      yield* page.messages;
      after = page.messages.at(-1)?.sequence_num ?? after;
      more = page.has_more && page.messages.length > 0;
    }
  }

  /** The state now, or right after an event (`sequence`), or at a `version`. */
  async state(threadId: string, query: OperationQuery<"GET /api/sessions/{thread_id}/state"> = {}, options?: CallOptions): Promise<StateView> {
    return this.transport.call("GET /api/sessions/{thread_id}/state", { path: { thread_id: threadId }, query }, { ...options, thread: threadId });
  }

  /** Set keys of the state; `DELETE` removes one. With `expected_version` a newer state is a `ConflictError`. */
  async changeState(threadId: string, delta: Record<string, unknown>, change: { expected_version?: number; author?: string } = {}, options?: CallOptions): Promise<Appended> {
    const appended = await this.transport.call("PATCH /api/sessions/{thread_id}/state", { path: { thread_id: threadId }, body: { delta, ...change } }, options);
    this.transport.noteSeen(threadId, appended.sequence_num);
    return appended;
  }

  /** Copy a session up to an event into a new one. */
  async fork(threadId: string, fork: OperationBody<"POST /api/sessions/{thread_id}/fork"> = {}, options?: CallOptions): Promise<SessionView> {
    return this.transport.call("POST /api/sessions/{thread_id}/fork", { path: { thread_id: threadId }, body: fork }, options);
  }
}

/** The value that removes a key in a delta of the state. */
export const DELETE = Object.freeze({ $delete: true } as const);

/** Timelines: what was said and done in a thread, item by item. */
export class Timelines extends Resource {
  /** The newest `limit` items, oldest first, or those `before` or `after` a sequence. */
  async read(conversationId: string, query: OperationQuery<"GET /conversations/{context_id}/messages"> = {}, options?: CallOptions): Promise<TimelineView> {
    const page = await this.transport.call("GET /conversations/{context_id}/messages", { path: { context_id: conversationId }, query }, { ...options, thread: conversationId });
    this.transport.noteSeen(conversationId, page.lastSequence);
    return page;
  }

  /** Pages from the newest to the oldest; the items of a page are oldest first. */
  async *pages(conversationId: string, query: { limit?: number; before?: number; branch?: string } = {}, options?: CallOptions): AsyncGenerator<TimelineView, void, undefined> {
    let before = query.before;
    for (let more = true; more; ) {
      const page = await this.read(conversationId, { ...query, before }, options);
      if (page.timeline.length) yield page;
      more = page.hasMore && page.firstSequence !== null && page.firstSequence !== before;
      before = page.firstSequence ?? undefined;
    }
  }
}

const ENDED = new Set(["completed", "failed", "cancelled"]);
const END_EVENTS = new Set(["run_finished", "run_failed", "run_cancelled"]);

/** Runs. `threadId` names the thread of the run; without it a run id that two threads have is a `ConflictError`. */
export class Runs extends Resource {
  /** Create a run: for workers with `handler`, else executed by the caller. Without a `run_id` it gets one, so that the
   * call can be repeated: the server creates the run once. */
  async create(threadId: string, run: NewRun = {}, options?: CallOptions): Promise<RunView> {
    const runId = run.run_id ?? newId();
    let isRepeated = false;
    const onRepeat = () => (isRepeated = true);
    const input = { path: { thread_id: threadId }, body: { ...run, run_id: runId } };
    try {
      return await this.transport.call("POST /api/sessions/{thread_id}/runs", input, { repeatable: true, onRepeat, ...options });
    } catch (error) {
      // An earlier attempt created it, and its answer was lost.
      if (isRepeated && error instanceof ConflictError) return this.get(runId, { threadId, ...options });
      throw error;
    }
  }

  async get(runId: string, { threadId, ...options }: CallOptions & { threadId?: string } = {}): Promise<RunDetail> {
    return this.transport.call("GET /api/runs/{run_id}", { path: { run_id: runId }, query: { thread_id: threadId } }, options);
  }

  /** Runs of all threads, one page. */
  async list(query: OperationQuery<"GET /api/runs"> = {}, options?: CallOptions): Promise<FoundRuns> {
    return this.transport.call("GET /api/runs", { query }, options);
  }

  /** All runs that match, newest first, page by page. */
  async *iterate(query: OperationQuery<"GET /api/runs"> = {}, options?: CallOptions): AsyncGenerator<FoundRuns["runs"][number], void, undefined> {
    let cursor = query.cursor;
    do {
      const page = await this.list({ ...query, cursor }, options);
      yield* page.runs;
      cursor = page.next_cursor;
    } while (cursor);
  }

  async listOfThread(threadId: string, query: { limit?: number } = {}, options?: CallOptions): Promise<RunView[]> {
    const page = await this.transport.call("GET /api/sessions/{thread_id}/runs", { path: { thread_id: threadId }, query }, options);
    return page.runs;
  }

  async cancel(runId: string, options: CallOptions & { threadId?: string } = {}): Promise<RunView> {
    return this.#change(runId, "cancel", undefined, options) as Promise<RunView>;
  }

  async retry(runId: string, options: CallOptions & { threadId?: string } = {}): Promise<RunView> {
    return this.#change(runId, "retry", undefined, options) as Promise<RunView>;
  }

  /** Let a run that the caller executes wait for a signal, a person or a time. */
  async suspend(runId: string, wait: NewWait, options: CallOptions & { threadId?: string } = {}): Promise<RunView> {
    return this.#change(runId, "wait", wait, options) as Promise<RunView>;
  }

  /** End the wait of a run for this correlation key, now or as soon as it waits for it. The same signal twice counts once. */
  async signal(runId: string, correlationKey: string, payload: unknown = null, options: CallOptions & { threadId?: string } = {}): Promise<Signalled> {
    const body = { correlation_key: correlationKey, payload };
    return this.#change(runId, "signal", body, { repeatable: true, ...options }) as Promise<Signalled>;
  }

  /** Answer what a waiting run waits for: `{ confirmed: true }`, or what its question expects. */
  async answer(runId: string, payload: unknown, options: CallOptions & { threadId?: string } = {}): Promise<RunView> {
    const run = await this.get(runId, options);
    if (!run.wait) throw new CognizesError(`run ${runId} is ${run.status} and waits for nothing; there is nothing to answer`);
    const { threadId, ...rest } = options;
    return (await this.signal(runId, run.wait.correlation_key, payload, { ...rest, threadId: threadId ?? run.thread_id })).run;
  }

  /** Return a run when it has ended; with `untilWaiting`, or waits. A run that failed is returned like any other. An
   * `AbortSignal.timeout(ms)` as `signal` limits the time. */
  async wait(runId: string, options: CallOptions & { threadId?: string; untilWaiting?: boolean } = {}): Promise<RunDetail> {
    const { untilWaiting = false, threadId, ...rest } = options;
    for (let after = 0; ; ) {
      const run = await this.get(runId, { threadId, ...rest });
      if (ENDED.has(run.status) || (untilWaiting && run.status === "waiting")) return run;
      for await (const frame of this.follow(runId, { threadId: run.thread_id, signal: options.signal, after })) {
        after = frame.cursor;
        if (untilWaiting && frame.type === "CUSTOM" && frame.name === "run_waiting") break;
      }
    }
  }

  /** Finish a run that the caller executes. */
  async finish(threadId: string, runId: string, options?: CallOptions & { attempt?: number }): Promise<RunView> {
    const query = { attempt: options?.attempt };
    return this.transport.call("POST /api/sessions/{thread_id}/runs/{run_id}/finish", { path: { thread_id: threadId, run_id: runId }, query }, options);
  }

  /** Fail a run that the caller executes. */
  async fail(threadId: string, runId: string, error: string, options?: CallOptions & { attempt?: number }): Promise<RunView> {
    const query = { attempt: options?.attempt };
    return this.transport.call("POST /api/sessions/{thread_id}/runs/{run_id}/fail", { path: { thread_id: threadId, run_id: runId }, query, body: { error } }, options);
  }

  /** Follow a run live until it ends. Text comes as it is written, without repetitions after a lost connection. */
  async *follow(runId: string, options: FollowOptions & { threadId?: string } = {}): AsyncGenerator<FollowedFrame, void, undefined> {
    const { threadId, ...rest } = options;
    if (rest.after && (await this.#hasEndedBefore(runId, rest.after, threadId, rest.signal))) return;
    const path = `/api/runs/${encodeSegment(runId)}/events`;
    const request = { method: "GET", path, query: { thread_id: threadId } };
    yield* followFrames(this.transport, request, (frame) => frame.type === "RUN_FINISHED", rest);
  }

  /** Return whether the end of a run is not after an event: the stream would wait without end. */
  async #hasEndedBefore(runId: string, after: number, threadId: string | undefined, signal: AbortSignal | undefined): Promise<boolean> {
    let run: RunDetail;
    try {
      run = await this.get(runId, { threadId, signal });
    } catch (error) {
      if (error instanceof NotFoundError) return false; // it may exist later
      throw error;
    }
    if (!ENDED.has(run.status)) return false;
    const session = await this.transport.call("GET /api/sessions/{thread_id}", { path: { thread_id: run.thread_id } }, { signal });
    if (session.last_sequence < after) return false; // rewound: the stream says so
    const events = new Sessions(this.transport).iterateEvents(run.thread_id, { after }, { signal });
    for await (const event of events) if (event.run_id === runId && END_EVENTS.has(event.event_type)) return false;
    return true;
  }

  #change(runId: string, what: string, body: unknown, { threadId, ...options }: CallOptions & { threadId?: string; repeatable?: boolean }): Promise<unknown> {
    const prefix = threadId === undefined ? "/api/runs" : `/api/sessions/${encodeSegment(threadId)}/runs`;
    return this.transport.json({ ...options, method: "POST", path: `${prefix}/${encodeSegment(runId)}/${what}`, json: body });
  }
}

/** Memory of an agent about its users. */
export class Memory extends Resource {
  /** Store texts to be recalled later; return how many are new. The same `source_id` twice is stored once. */
  async add(owner: Owner, memories: NewNote[], kind: "note" | "turn" = "note", options?: CallOptions): Promise<OperationResponse<"POST /memory">> {
    return this.transport.call("POST /memory", { body: { ...owner, kind, memories } }, { repeatable: true, ...options });
  }

  /** Memories that fit a question, best first. */
  async recall(question: OperationBody<"POST /memory/recall">, options?: CallOptions): Promise<Hits["hits"]> {
    return (await this.transport.call("POST /memory/recall", { body: question }, { repeatable: true, ...options })).hits;
  }

  /** The text for a prompt: recent turns, state and recalled memories within a budget of tokens. */
  async context(question: OperationBody<"POST /memory/context">, options?: CallOptions): Promise<OperationResponse<"POST /memory/context">> {
    return this.transport.call("POST /memory/context", { body: question }, { repeatable: true, ...options });
  }

  async searchMessages(question: OperationBody<"POST /memory/messages/search">, options?: CallOptions): Promise<OperationResponse<"POST /memory/messages/search">["hits"]> {
    return (await this.transport.call("POST /memory/messages/search", { body: question }, { repeatable: true, ...options })).hits;
  }

  async list(query: OperationQuery<"GET /memory">, options?: CallOptions): Promise<OperationResponse<"GET /memory">> {
    return this.transport.call("GET /memory", { query }, options);
  }

  async *iterate(query: OperationQuery<"GET /memory">, options?: CallOptions): AsyncGenerator<MemoryView, void, undefined> {
    let before = query.before;
    do {
      const page = await this.list({ ...query, before }, options);
      yield* page.memories;
      before = page.next_before;
    } while (before);
  }

  async forget(memoryId: string, owner: { app_name: string; user_id: string }, options?: CallOptions): Promise<void> {
    await this.transport.call("DELETE /memory/{memory_id}", { path: { memory_id: memoryId }, query: owner }, options);
  }

  /** Set a long-term fact. */
  async setFact(fact: NewFact, options?: CallOptions): Promise<OperationResponse<"PUT /memory/long-term">> {
    return this.transport.call("PUT /memory/long-term", { body: fact }, options);
  }

  /** A long-term fact; null if there is none. */
  async fact(query: OperationQuery<"GET /memory/long-term/entry">, options?: CallOptions): Promise<OperationResponse<"GET /memory/long-term/entry"> | null> {
    try {
      return await this.transport.call("GET /memory/long-term/entry", { query }, options);
    } catch (error) {
      if (error instanceof NotFoundError) return null;
      throw error;
    }
  }
}

/** What can be uploaded. */
export type UploadData = Blob | ArrayBuffer | Uint8Array<ArrayBuffer> | string;

/** Files of messages. */
export class Attachments extends Resource {
  /** Upload a file for a thread. `part` of the result refers to it in a message. */
  async upload(threadId: string, data: UploadData, file: { name?: string; type?: string } = {}, options?: CallOptions): Promise<AttachmentView> {
    return this.#upload(`/api/sessions/${encodeSegment(threadId)}/attachments`, data, file, options);
  }

  /** Upload a file for a thread of a hosted agent, which is created if it does not exist. */
  async uploadForAgent(agent: string, threadId: string, data: UploadData, file: { name?: string; type?: string } = {}, options?: CallOptions): Promise<AttachmentView> {
    return this.#upload(`/agui/${encodeSegment(agent)}/threads/${encodeSegment(threadId)}/attachments`, data, file, options);
  }

  async list(threadId: string, query: { limit?: number; cursor?: string } = {}, options?: CallOptions): Promise<OperationResponse<"GET /api/sessions/{thread_id}/attachments">> {
    return this.transport.call("GET /api/sessions/{thread_id}/attachments", { path: { thread_id: threadId }, query }, options);
  }

  /** Download a file, or the bytes from `start` up to and including `end`. */
  async download(threadId: string, attachmentId: string, options: CallOptions & { start?: number; end?: number } = {}): Promise<{ data: ArrayBuffer; type: string }> {
    const { start, end, ...rest } = options;
    const path = `/api/sessions/${encodeSegment(threadId)}/attachments/${encodeSegment(attachmentId)}`;
    const range = start === undefined && end === undefined ? undefined : { Range: `bytes=${start ?? 0}-${end ?? ""}` };
    const { data, type } = await this.transport.bytes({ ...rest, method: "GET", path, headers: { ...rest.headers, Accept: "*/*", ...range } });
    return { data, type };
  }

  async #upload(path: string, data: UploadData, file: { name?: string; type?: string }, options: CallOptions = {}): Promise<AttachmentView> {
    const kind = file.type ?? (data instanceof Blob && data.type ? data.type : "application/octet-stream");
    const name = file.name ?? (typeof File !== "undefined" && data instanceof File ? data.name : undefined);
    const headers = { ...options.headers, "Content-Type": kind };
    return (await this.transport.json({ timeoutMs: 0, ...options, method: "POST", path, query: { filename: name }, body: data, headers })) as AttachmentView;
  }
}

/** Tokens and cost of model calls. */
export class Usage extends Resource {
  async ofSession(threadId: string, options?: CallOptions): Promise<UsageView> {
    return this.transport.call("GET /api/sessions/{thread_id}/usage", { path: { thread_id: threadId } }, { ...options, thread: threadId });
  }

  async ofRun(runId: string, { threadId, ...options }: CallOptions & { threadId?: string } = {}): Promise<UsageView> {
    return this.transport.call("GET /api/runs/{run_id}/usage", { path: { run_id: runId }, query: { thread_id: threadId } }, options);
  }

  async ofApp(query: OperationQuery<"GET /api/usage">, options?: CallOptions): Promise<UsageView> {
    return this.transport.call("GET /api/usage", { query }, options);
  }

  async record(threadId: string, usage: OperationBody<"POST /api/sessions/{thread_id}/usage">, options?: CallOptions): Promise<OperationResponse<"POST /api/sessions/{thread_id}/usage">> {
    return this.transport.call("POST /api/sessions/{thread_id}/usage", { path: { thread_id: threadId }, body: usage }, { repeatable: true, ...options });
  }
}
