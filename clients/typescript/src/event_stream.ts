// Server-sent events over `fetch`, which can send headers and bodies; `EventSource` cannot. Any runtime with `fetch`.

import { ApiError, CognizesError, ConnectionLostError, describeBody, InvalidResponseError, TimeoutError } from "./errors.js";
import { connectionLost, isTemporary, pause, retryDelay, type RawRequest, type Transport } from "./transport.js";

/** One event of a stream. `id` is the newest id of the stream, also if this event has none. */
export interface ServerSentEvent {
  type: string;
  data: string;
  id: string;
  /** Whether this event itself has an id. */
  hasId: boolean;
}

/** How a stream is doing. */
export type ConnectionState = "connecting" | "open" | "reconnecting" | "closed";

export interface StreamOptions {
  signal?: AbortSignal;
  /** Called when the connection changes. */
  onConnection?: (state: ConnectionState, error?: Error) => void;
  /** A connection without data for this long is dead; 90 seconds by default, three heartbeats. */
  silenceMs?: number;
  /** The first pause before a new connection; doubled each time up to `longestDelayMs`, with jitter. */
  firstDelayMs?: number;
  longestDelayMs?: number;
  /** The longest event in characters; 64 Mi by default. */
  maxEventLength?: number;
}

const SILENCE_MS = 90_000;
const MAX_EVENT_LENGTH = 64 * 1024 * 1024;
const FIRST_DELAY_MS = 250;
const LONGEST_DELAY_MS = 10_000;

/** Parses the text of a stream in pieces of any size, by the rules of the HTML standard: LF, CR and CRLF end a line. */
export class EventParser {
  lastEventId = "";
  readonly #limit: number;
  #line: string[] = [];
  #length = 0;
  #endedWithReturn = false;
  #isFirst = true;
  #type = "";
  #data: string[] = [];
  #hasId = false;

  constructor(maxEventLength = MAX_EVENT_LENGTH) {
    this.#limit = maxEventLength;
  }

  /** Take in a piece of text; return the events that it completes. */
  push(text: string): ServerSentEvent[] {
    const events: ServerSentEvent[] = [];
    let start = 0;
    if (this.#isFirst && text) {
      this.#isFirst = false;
      if (text.startsWith("\uFEFF")) start = 1;
    }
    if (this.#endedWithReturn && text) {
      this.#endedWithReturn = false;
      if (text[start] === "\n") start += 1;
    }
    const lineEnd = /\r\n|\n|\r/g;
    lineEnd.lastIndex = start;
    for (let found = lineEnd.exec(text); found; found = lineEnd.exec(text)) {
      // The rest of a long line is joined once, when it is complete.
      const piece = text.slice(start, found.index);
      this.#grow(piece.length);
      const line = this.#line.length ? this.#line.join("") + piece : piece;
      this.#line = [];
      start = lineEnd.lastIndex;
      if (found[0] === "\r" && start === text.length) this.#endedWithReturn = true;
      const event = this.#takeLine(line);
      if (event) events.push(event);
    }
    if (start < text.length) {
      this.#grow(text.length - start);
      this.#line.push(text.slice(start));
    }
    return events;
  }

  #grow(length: number): void {
    this.#length += length;
    if (this.#length > this.#limit) throw new InvalidResponseError(`an event of the stream is longer than ${this.#limit} characters`);
  }

  #takeLine(line: string): ServerSentEvent | undefined {
    if (line === "") return this.#complete();
    const colon = line.indexOf(":");
    if (colon === 0) {
      this.#length -= line.length; // a comment
      return undefined;
    }
    const name = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(line[colon + 1] === " " ? colon + 2 : colon + 1);
    if (name === "data") this.#data.push(value);
    else if (name === "event") this.#type = value;
    else if (name === "id" && !value.includes("\0")) {
      this.lastEventId = value;
      this.#hasId = true;
    }
    return undefined;
  }

  #complete(): ServerSentEvent | undefined {
    const [type, data, hasId] = [this.#type, this.#data, this.#hasId];
    this.#type = "";
    this.#data = [];
    this.#hasId = false;
    this.#length = 0;
    if (!data.length) return undefined;
    return { type: type || "message", data: data.join("\n"), id: this.lastEventId, hasId };
  }
}

/** Yield the events of one connection until it ends. An incomplete event at its end is dropped. */
export async function* readEvents(
  transport: Transport,
  request: RawRequest,
  options: StreamOptions = {},
): AsyncGenerator<ServerSentEvent, void, undefined> {
  const controller = new AbortController();
  const silenceMs = options.silenceMs ?? SILENCE_MS;
  let isSilent = false;
  let timer: ReturnType<typeof setTimeout> | undefined;
  const watch = () => {
    clearTimeout(timer);
    if (silenceMs > 0) timer = setTimeout(() => { isSilent = true; controller.abort(); }, silenceMs);
  };
  const abort = () => controller.abort(options.signal?.reason);
  options.signal?.addEventListener("abort", abort, { once: true });
  const name = `${request.method} ${request.path}`;
  let reader: ReadableStreamDefaultReader<Uint8Array> | undefined;
  try {
    options.signal?.throwIfAborted();
    watch();
    const headers = { Accept: "text/event-stream", ...request.headers };
    const response = await transport.open({ ...request, headers, signal: controller.signal });
    await checkIsStream(name, response);
    options.onConnection?.("open");
    reader = (response.body as ReadableStream<Uint8Array>).getReader();
    const decoder = new TextDecoder(); // keeps the bytes of a character that is split between two pieces
    const parser = new EventParser(options.maxEventLength);
    for (;;) {
      watch();
      const { done, value } = await reader.read();
      if (done) return;
      for (const event of parser.push(decoder.decode(value, { stream: true }))) {
        clearTimeout(timer); // the caller may take its time
        yield event;
        options.signal?.throwIfAborted();
      }
    }
  } catch (error) {
    options.signal?.throwIfAborted();
    if (isSilent) throw new TimeoutError(`${name} sent nothing for ${silenceMs} ms`);
    throw error instanceof CognizesError ? error : connectionLost(name, error);
  } finally {
    clearTimeout(timer);
    options.signal?.removeEventListener("abort", abort);
    controller.abort(); // ends the request, also if the caller stops in the middle
    await reader?.cancel().catch(() => undefined); // an aborted body rejects; the request is over in both cases
  }
}

/** What to request for the next connection. */
export type NextRequest = (lastEventId: string) => RawRequest;

/** Yield the events of a stream over any number of connections.
 *
 * `request` makes the request of each connection; its argument is the newest id that was received. After a lost
 * connection the stream is opened again, without a limit of attempts, until the caller stops or its signal aborts. Errors
 * of the caller (401, 403, 404, 409, 422) end it, and so do failures of the first connection after a few attempts. */
export async function* followEvents(
  transport: Transport,
  request: NextRequest,
  options: StreamOptions = {},
): AsyncGenerator<ServerSentEvent, void, undefined> {
  let lastEventId = "";
  let wasOpen = false;
  let failures = 0;
  const tell = options.onConnection;
  tell?.("connecting");
  const onConnection = (state: ConnectionState) => {
    wasOpen = true;
    tell?.(state);
  };
  for (;;) {
    let failure: Error = new ConnectionLostError("the server closed the stream");
    try {
      for await (const event of readEvents(transport, request(lastEventId), { ...options, onConnection })) {
        failures = 0;
        lastEventId = event.id || lastEventId;
        yield event;
      }
    } catch (error) {
      options.signal?.throwIfAborted();
      failure = error as Error;
      const attempts = wasOpen ? Infinity : (transport.options.retries ?? 4);
      if (failures >= attempts || !mayReopen(failure, wasOpen)) throw failure;
    }
    tell?.(wasOpen ? "reconnecting" : "connecting", failure);
    const [first, longest] = [options.firstDelayMs ?? FIRST_DELAY_MS, options.longestDelayMs ?? LONGEST_DELAY_MS];
    await pause(retryDelay(failures++, failure, first, longest), options.signal);
  }
}

/** Return whether a new connection may succeed. Once it was open, pages of a proxy and 500 count as temporary. */
export function mayReopen(error: unknown, wasOpen: boolean): boolean {
  if (isTemporary(error)) return true;
  if (!wasOpen) return false;
  return (error instanceof InvalidResponseError && error.cause === NOT_A_STREAM) || (error instanceof ApiError && error.status >= 500);
}

const NOT_A_STREAM = Symbol("not a stream");

async function checkIsStream(name: string, response: Response): Promise<void> {
  const type = response.headers.get("content-type") ?? "";
  if (/^text\/event-stream\b/i.test(type) && response.body) return;
  const text = await response.text();
  throw new InvalidResponseError(`${name} is not answered with a stream: ${describeBody(response, text)}`, { cause: NOT_A_STREAM });
}
