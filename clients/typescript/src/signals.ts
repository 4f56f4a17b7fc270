// Signal-Pull: signals say that something is new, REST has the content.
//
// The pulling itself (gaps, retries, branches) is `signal_pull.js`, the module of the Monitor: this package links to that
// file, so that there is one implementation. This module gives it types and a connection with headers, backoff and a
// time limit for silence, which an `EventSource` does not have.

import { CognizesError } from "./errors.js";
import { followEvents, type ConnectionState, type StreamOptions } from "./event_stream.js";
import type { ContextMessageView } from "./rest_types.js";
import { SignalPullClient } from "./signal_pull.js";
import { encodeSegment, type OperationResponse, type RawRequest, type Transport } from "./transport.js";

/** A signal as the server sends it. */
export interface Signal {
  type: "state_changed" | "content_delta" | "message_created" | "message_completed" | "tool_approval" | "title_updated" | "heartbeat";
  context_id: string;
  sequence_num: number;
  message_id?: string;
  role?: string;
  current_sequence?: number;
  final_sequence?: number;
  status?: string;
  new_state?: string;
  active_branch_name?: string;
  messages_removed?: boolean;
  approval_id?: string;
  tool_name?: string;
  is_cut?: boolean;
  timestamp?: string;
}

export interface SignalPullEvents {
  /** New text of a message. */
  content: { messageId: string; delta: string; text: string; sequence: number; complete: boolean };
  /** A message is whole. */
  completed: { messageId: string; text: string; sequence: number };
  /** The stored messages of the active branch, at start and when they change. */
  history: { branch: string; messages: ContextMessageView[] };
  /** The state of the context, such as `Idle` or `StreamingLLMResponse`. */
  state: { state: string };
  signal: Signal;
  refresh: { metadata: OperationResponse<"GET /contexts/{context_id}/metadata">; reason: string };
  connection: { open: boolean; reconnecting: boolean };
  /** A failed request, which is repeated, or the reason why the subscription ended (`during: "connect"`). */
  error: { error: Error; during: string; messageId?: string };
}

export interface SignalPullOptions extends Omit<StreamOptions, "onConnection"> {
  /** Whether the messages of the active branch are read at start; true by default. */
  history?: boolean;
  /** The pause before a failed pull is repeated without a signal; one second by default. */
  retryMs?: number;
}

/** A message of the copy. */
export interface PulledMessage {
  id: string;
  role: string;
  text: string;
  isComplete: boolean;
  /** The stored message; undefined while it is being written. */
  stored: ContextMessageView | undefined;
}

interface Pulled {
  text: string;
  sequence: number;
  complete: boolean;
}

/** What this module uses of `SignalPullClient`, whose source has no types. */
interface Puller {
  readonly state: string | null;
  readonly branch: string | null;
  readonly messages: Map<string, Pulled>;
  readonly stats: { signals: number; pulls: number; failed: number; gaps: number; reconnects: number };
  on<K extends keyof SignalPullEvents>(kind: K, listener: (detail: SignalPullEvents[K]) => void): () => void;
  start(): Promise<unknown>;
  refresh(reason: string): Promise<void>;
  close(): void;
}

/** A copy of a context (a thread) that keeps itself up to date. */
export class SignalPull {
  readonly contextId: string;
  readonly #puller: Puller;
  readonly #controller = new AbortController();
  readonly #roles = new Map<string, string>();
  readonly #outer: AbortSignal | undefined;
  readonly #refusalListeners = new Set<(detail: SignalPullEvents["error"]) => void>();
  #stored: readonly ContextMessageView[] = [];
  #refusal: Error | null = null;

  constructor(transport: Transport, contextId: string, options: SignalPullOptions = {}) {
    if (!contextId) throw new TypeError("the id of a context must not be empty");
    encodeSegment(contextId); // refuses ids that cannot be in a path
    this.contextId = contextId;
    const { signal: outer, history, retryMs, ...stream } = options;
    this.#outer = outer;
    outer?.addEventListener("abort", this.close, { once: true });
    const { signal } = this.#controller;
    this.#puller = new SignalPullClient("", contextId, {
      history,
      retryMs,
      fetch: (async (path: string, init: { headers: Record<string, string> }) => {
        const value = await transport.json({ method: "GET", path, headers: init.headers, signal });
        return { ok: true, json: async () => value };
      }) as unknown as typeof fetch,
      eventSource: (path: string) => new FetchEventSource(transport, path, { ...stream, signal }, this.#fail) as unknown as EventSource,
    }) as unknown as Puller;
    this.#puller.on("history", ({ messages }) => (this.#stored = messages));
    this.#puller.on("signal", (one) => {
      if (one.message_id && one.role) this.#roles.set(one.message_id, one.role);
    });
    if (outer?.aborted) this.close();
  }

  /** The state of the context; null before it is known. */
  get state(): string | null {
    return this.#puller.state;
  }

  /** The active branch; null before it is known. */
  get branch(): string | null {
    return this.#puller.branch;
  }

  /** Numbers of signals, pulls, failed pulls, gaps and reconnections. */
  get stats(): Readonly<Puller["stats"]> {
    return this.#puller.stats;
  }

  /** All messages of the active branch, oldest first; last those that are being written. */
  get messages(): PulledMessage[] {
    const known = this.#puller.messages;
    const stored = new Set(this.#stored.map((message) => message.id));
    const listed = this.#stored.map((message) => {
      const pulled = known.get(message.id);
      return { id: message.id, role: message.role, text: pulled?.text ?? "", isComplete: pulled?.complete ?? true, stored: message };
    });
    const others = [...known].filter(([id]) => !stored.has(id));
    return [...listed, ...others.map(([id, { text, complete }]) => ({ id, role: this.#roles.get(id) ?? "assistant", text, isComplete: complete, stored: undefined }))];
  }

  /** Call a listener; return a function that ends it. */
  on<K extends keyof SignalPullEvents>(kind: K, listener: (detail: SignalPullEvents[K]) => void): () => void {
    const stop = this.#puller.on(kind, listener);
    if (kind !== "error") return stop;
    const refused = listener as (detail: SignalPullEvents["error"]) => void;
    this.#refusalListeners.add(refused);
    return () => void (stop(), this.#refusalListeners.delete(refused));
  }

  /** Read the metadata and the messages, then listen. Return when signals arrive; throw if the server refuses. */
  async start(): Promise<this> {
    let isOpen = false;
    const stop = this.on("connection", ({ open }) => (isOpen ||= open));
    const opened = this.#wait(["connection"], () => isOpen);
    try {
      await Promise.all([opened, this.#puller.start()]);
    } finally {
      stop();
    }
    return this;
  }

  /** End all requests and timers; no listener is called afterwards. */
  close = (): void => {
    this.#outer?.removeEventListener("abort", this.close);
    this.#puller.close();
    this.#controller.abort();
  };

  /** Wait until a condition holds, which is checked after each change. */
  async until(condition: (copy: this) => boolean, options: { signal?: AbortSignal } = {}): Promise<void> {
    await this.#wait(["content", "completed", "history", "state", "refresh"], () => condition(this), options.signal);
  }

  async #wait(kinds: readonly (keyof SignalPullEvents)[], condition: () => boolean, signal?: AbortSignal): Promise<void> {
    if (condition()) return;
    await new Promise<void>((resolve, reject) => {
      const signals = [this.#controller.signal, signal];
      const end = (finish: () => void) => {
        for (const stop of stops) stop();
        for (const one of signals) one?.removeEventListener("abort", abort);
        finish();
      };
      const abort = () => {
        const reason = signal?.aborted ? (signal.reason as Error) : (this.#refusal ?? new CognizesError("the subscription is closed"));
        end(() => reject(reason));
      };
      const check = () => condition() && end(resolve);
      const stops = kinds.map((kind) => this.on(kind, check));
      for (const one of signals) one?.addEventListener("abort", abort, { once: true });
      if (signals.some((one) => one?.aborted)) abort();
    });
  }

  /** The server refuses the subscription: the context does not exist, or is not the caller's. */
  #fail = (error: Error): void => {
    this.#refusal = error;
    for (const listener of this.#refusalListeners) listener({ error, during: "connect" });
    this.close();
  };
}

type Listener = (event: { data: string }) => void;

/** The part of `EventSource` that `signal_pull.js` uses, over `fetch`. It reconnects by itself. */
class FetchEventSource {
  readyState = 0;
  readonly #listeners = new Map<string, Listener[]>();
  readonly #controller = new AbortController();
  readonly #outer: AbortSignal;

  constructor(transport: Transport, path: string, options: StreamOptions & { signal: AbortSignal }, onRefused: (error: Error) => void) {
    this.#outer = options.signal;
    this.#outer.addEventListener("abort", this.close, { once: true });
    if (this.#outer.aborted) this.close();
    // After this turn: the listeners are added next.
    void Promise.resolve().then(() => this.#run(transport, path, options, onRefused));
  }

  addEventListener(type: string, listener: Listener): void {
    this.#listeners.set(type, [...(this.#listeners.get(type) ?? []), listener]);
  }

  close = (): void => {
    this.readyState = 2;
    this.#outer.removeEventListener("abort", this.close);
    this.#controller.abort();
  };

  async #run(transport: Transport, path: string, options: StreamOptions, onRefused: (error: Error) => void): Promise<void> {
    const { signal } = this.#controller;
    const onConnection = (state: ConnectionState) => {
      if (signal.aborted || state === "connecting") return;
      this.readyState = state === "open" ? 1 : 0;
      this.#dispatch(state === "open" ? "open" : "error", "");
    };
    const next = (id: string): RawRequest => ({ method: "GET", path, headers: id ? { "Last-Event-ID": id } : undefined });
    try {
      for await (const event of followEvents(transport, next, { ...options, signal, onConnection })) this.#dispatch(event.type, event.data);
    } catch (error) {
      if (signal.aborted) return;
      onRefused(error as Error);
    }
  }

  #dispatch(type: string, data: string): void {
    if (!this.#controller.signal.aborted) for (const listener of this.#listeners.get(type) ?? []) listener({ data });
  }
}
