// HTTP requests: authentication, time limits, and retries of calls that may be repeated.

import { ApiError, CognizesError, ConnectionLostError, describeBody, errorOfResponse, InvalidResponseError, TimeoutError } from "./errors.js";
import type { Operations } from "./rest_types.js";

export interface ClientOptions {
  /** Where the server is, such as `https://engine.example.com`; "" for the origin of the page. */
  baseUrl: string;
  /** An API key or a token of the identity provider; a function is asked before each request. */
  apiKey?: string | (() => string | undefined | Promise<string | undefined>);
  /** The user of hosted agents (`X-User-ID`), for a key that is bound to no user. */
  userId?: string;
  /** Headers of each request. */
  headers?: Record<string, string>;
  /** By default the global `fetch`. */
  fetch?: typeof globalThis.fetch;
  /** How often a call that may be repeated is repeated; 4 by default. */
  retries?: number;
  /** The time limit of one attempt, without streams; 30 seconds by default, 0 for none. */
  timeoutMs?: number;
}

/** Options of each call. */
export interface CallOptions {
  /** Aborts the call. */
  signal?: AbortSignal;
  /** The time limit of one attempt; 0 for none. */
  timeoutMs?: number;
  headers?: Record<string, string>;
  /** The newest event that was seen of the thread: a read replica answers with no less. Known by itself for events that
   * passed through this client. */
  seenSequence?: number;
}

export type OperationName = keyof Operations;
type Given<Name extends string, T> = {} extends T ? { [K in Name]?: T } : { [K in Name]: T };
type Body<T> = [T] extends [undefined] ? { body?: undefined } : undefined extends T ? { body?: T } : { body: T };
/** What an operation takes, from the OpenAPI document. */
export type OperationInput<N extends OperationName> = Given<"path", Operations[N]["path"]> &
  Given<"query", Operations[N]["query"]> &
  Body<Operations[N]["body"]>;
export type OperationResponse<N extends OperationName> = Operations[N]["response"];
export type OperationBody<N extends OperationName> = NonNullable<Operations[N]["body"]>;
export type OperationQuery<N extends OperationName> = Operations[N]["query"];

type Query = Record<string, unknown>;

export interface RawRequest extends CallOptions {
  method: string;
  /** Path without the base; its parts are encoded. */
  path: string;
  query?: Query;
  json?: unknown;
  body?: BodyInit;
  /** Whether the call may be repeated after an attempt with an unknown outcome. */
  repeatable?: boolean;
  /** Called before the request is repeated. */
  onRepeat?: () => void;
  /** The thread whose newest known event is sent as `X-Seen-Sequence`. */
  thread?: string;
}

const REPEATABLE_METHODS = new Set(["GET", "HEAD", "PUT", "DELETE"]);
const FIRST_DELAY_MS = 200;
const LONGEST_DELAY_MS = 20_000;
const THREADS_KEPT = 1000;

/** Sends requests. All parts of a client share one. */
export class Transport {
  readonly options: Readonly<ClientOptions>;
  readonly #fetch: typeof globalThis.fetch;
  readonly #seen = new Map<string, number>();

  constructor(options: ClientOptions) {
    this.options = { ...options, baseUrl: options.baseUrl.replace(/\/+$/, "") };
    // Without the wrapper a browser refuses: `fetch` must be called on the window.
    this.#fetch = options.fetch ?? ((...given) => globalThis.fetch(...given));
  }

  /** Call an operation of the OpenAPI document and return its JSON. */
  async call<N extends OperationName>(
    name: N,
    input: OperationInput<N>,
    options: CallOptions & Pick<RawRequest, "repeatable" | "onRepeat" | "thread"> = {},
  ): Promise<OperationResponse<N>> {
    const { method, path } = fillPath(name, (input.path ?? {}) as Record<string, unknown>);
    const query = input.query as Query | undefined;
    return (await this.json({ ...options, method, path, query, json: input.body })) as OperationResponse<N>;
  }

  /** Send a request and return the JSON of its answer; undefined for an answer without a body. */
  async json(request: RawRequest): Promise<unknown> {
    return this.#repeat(request, async (response) => {
      if (response.status === 204 || response.status === 304) return undefined;
      const text = await response.text();
      if (!/\bjson\b/.test(response.headers.get("content-type") ?? "")) {
        throw new InvalidResponseError(`${title(request)} is not answered by the engine: ${describeBody(response, text)}`);
      }
      try {
        return JSON.parse(text) as unknown;
      } catch (error) {
        throw new InvalidResponseError(`the answer to ${title(request)} is not valid JSON`, { cause: error });
      }
    });
  }

  /** Send a request and return its bytes. */
  async bytes(request: RawRequest): Promise<{ data: ArrayBuffer; type: string; headers: Headers }> {
    return this.#repeat(request, async (response) => ({
      data: await response.arrayBuffer(),
      type: response.headers.get("content-type") ?? "application/octet-stream",
      headers: response.headers,
    }));
  }

  /** Open a stream: one attempt, without a time limit. The caller reads the body, or aborts. */
  async open(request: RawRequest): Promise<Response> {
    const response = await this.#send(request, request.signal, { cache: "no-store" });
    if (!response.ok) throw await errorOfResponse(title(request), response);
    return response;
  }

  /** Note an event that the caller has seen; later reads of the thread contain it. */
  noteSeen(thread: string, sequence: number | null | undefined): void {
    if (typeof sequence !== "number" || sequence <= (this.#seen.get(thread) ?? 0)) return;
    this.#seen.delete(thread);
    this.#seen.set(thread, sequence);
    if (this.#seen.size > THREADS_KEPT) this.#seen.delete(this.#seen.keys().next().value as string);
  }

  /** Forget the events of a thread: it was deleted, or lost its newest events. */
  forgetSeen(thread: string): void {
    this.#seen.delete(thread);
  }

  async #repeat<T>(request: RawRequest, read: (response: Response) => Promise<T>): Promise<T> {
    const retries = this.options.retries ?? 4;
    const mayRepeat = request.repeatable ?? REPEATABLE_METHODS.has(request.method);
    for (let attempt = 0; ; attempt++) {
      try {
        return await this.#attempt(request, read);
      } catch (error) {
        // An earlier attempt has deleted it, and its answer was lost.
        if (attempt > 0 && request.method === "DELETE" && error instanceof ApiError && error.status === 404) {
          return undefined as T;
        }
        if (attempt >= retries || !isTemporary(error, mayRepeat)) throw error;
        await pause(retryDelay(attempt, error), request.signal);
        request.onRepeat?.();
      }
    }
  }

  async #attempt<T>(request: RawRequest, read: (response: Response) => Promise<T>): Promise<T> {
    const limit = request.timeoutMs ?? this.options.timeoutMs ?? 30_000;
    const linked = linkSignal(request.signal, limit);
    try {
      const response = await this.#send(request, linked.signal);
      if (!response.ok) throw await errorOfResponse(title(request), response);
      // A body that ends too early is an error without a class of its own.
      return await read(response).catch((error: unknown) => {
        throw error instanceof CognizesError ? error : connectionLost(title(request), error);
      });
    } catch (error) {
      request.signal?.throwIfAborted();
      if (linked.timedOut()) throw new TimeoutError(`${title(request)} has no answer after ${limit} ms`);
      throw error;
    } finally {
      linked.release();
    }
  }

  async #send(request: RawRequest, signal: AbortSignal | undefined, more: RequestInit = {}): Promise<Response> {
    // A value that a header cannot carry is an error of the caller, before anything is sent.
    const headers = new Headers(await this.#headers(request));
    const init: RequestInit = { ...more, method: request.method, headers };
    if (signal) init.signal = signal;
    if (request.json !== undefined) {
      headers.set("Content-Type", "application/json");
      init.body = JSON.stringify(request.json);
    } else if (request.body !== undefined) init.body = request.body;
    try {
      return await this.#fetch(this.options.baseUrl + request.path + queryText(request.query), init);
    } catch (error) {
      signal?.throwIfAborted();
      throw connectionLost(title(request), error);
    }
  }

  async #headers(request: RawRequest): Promise<Record<string, string>> {
    const { apiKey, userId } = this.options;
    const headers: Record<string, string> = { Accept: "application/json", ...this.options.headers };
    const key = typeof apiKey === "function" ? await apiKey() : apiKey;
    if (key && !/^[\x21-\x7e]+$/.test(key)) throw new TypeError("the API key has characters that a header cannot carry");
    if (key) headers["Authorization"] = `Bearer ${key}`;
    if (userId) headers["X-User-ID"] = userId;
    const seen = request.seenSequence ?? (request.thread === undefined ? undefined : this.#seen.get(request.thread));
    if (seen) headers["X-Seen-Sequence"] = String(seen);
    return { ...headers, ...request.headers };
  }
}

/** Return whether the same request may succeed later. */
export function isTemporary(error: unknown, mayRepeat = true): boolean {
  // The server refuses before it executes: repeating is safe for any call.
  if (error instanceof ApiError && error.status === 429) return true;
  if (!mayRepeat) return false;
  return error instanceof ConnectionLostError || (error instanceof ApiError && [408, 502, 503, 504].includes(error.status));
}

/** Return the pause before the next attempt: what the server asks for, else doubled each time, with jitter. */
export function retryDelay(attempt: number, error?: unknown, firstMs = FIRST_DELAY_MS, longestMs = LONGEST_DELAY_MS): number {
  const asked = error instanceof ApiError ? error.retryAfterMs : null;
  if (asked !== null) return Math.min(asked, longestMs) + Math.random() * 50;
  return Math.min(firstMs * 2 ** Math.min(attempt, 16), longestMs) * (0.5 + Math.random() / 2);
}

/** Wait; throw the reason of the signal if it aborts. It leaves no timer and no listener behind. */
export function pause(ms: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    if (signal?.aborted) return reject(signal.reason as Error);
    const stop = () => {
      clearTimeout(timer);
      reject(signal?.reason as Error);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", stop);
      resolve();
    }, ms);
    signal?.addEventListener("abort", stop, { once: true });
  });
}

/** Return a new id. `crypto.randomUUID` exists only on pages that are served over HTTPS or by this machine. */
export function newId(): string {
  if (typeof crypto.randomUUID === "function") return crypto.randomUUID();
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  bytes[6] = ((bytes[6] ?? 0) & 0x0f) | 0x40;
  bytes[8] = ((bytes[8] ?? 0) & 0x3f) | 0x80;
  const digits = Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
  return digits.replace(/^(.{8})(.{4})(.{4})(.{4})/, "$1-$2-$3-$4-");
}

/** Return `METHOD /path` with the values in it. Each value is one path segment. */
export function fillPath(name: string, values: Record<string, unknown>): { method: string; path: string } {
  const [method, template] = name.split(" ") as [string, string];
  const path = template.replace(/\{(\w+)\}/g, (_, key: string) => {
    const value = values[key];
    if (value === undefined || value === null || value === "") throw new TypeError(`${name} needs ${key}; it is ${JSON.stringify(value)}`);
    return encodeSegment(String(value));
  });
  return { method, path };
}

/** Encode one segment of a path. `.` and `..` would be resolved as directories by `fetch`, so they are refused. */
export function encodeSegment(value: string): string {
  if (value === "." || value === "..") throw new TypeError(`"${value}" cannot be an id in a path`);
  return encodeURIComponent(value);
}

export function connectionLost(what: string, error: unknown): ConnectionLostError {
  if (error instanceof ConnectionLostError) return error;
  const cause = error instanceof Error && error.cause instanceof Error ? error.cause : error;
  const why = cause instanceof Error ? cause.message : String(cause);
  return new ConnectionLostError(`the connection of ${what} failed: ${why}`, { cause: error });
}

function title(request: RawRequest): string {
  return `${request.method} ${request.path}`;
}

function queryText(query: Query | undefined): string {
  const search = new URLSearchParams();
  for (const [name, value] of Object.entries(query ?? {})) {
    if (value === undefined || value === null) continue;
    for (const one of Array.isArray(value) ? value : [value]) search.append(name, String(one));
  }
  const text = search.toString();
  return text && `?${text}`;
}

/** Return a signal that aborts with another one or after a time limit. `release` removes timer and listener. */
function linkSignal(signal: AbortSignal | undefined, limitMs: number) {
  const controller = new AbortController();
  let isLate = false;
  const abort = () => controller.abort(signal?.reason);
  const timer = limitMs > 0 ? setTimeout(() => { isLate = true; controller.abort(); }, limitMs) : undefined;
  if (signal?.aborted) abort();
  signal?.addEventListener("abort", abort, { once: true });
  return {
    signal: controller.signal,
    timedOut: () => isLate,
    release: () => {
      clearTimeout(timer);
      signal?.removeEventListener("abort", abort);
    },
  };
}
