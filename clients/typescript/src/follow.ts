// Follow a run or a thread live: an iterator over frames that survives lost connections.
//
// Each event of the engine becomes frames; the last one carries the number of the event, the cursor. Frames of chunks of
// a message that is being written carry none, and the server sends such a message from its beginning after a
// reconnection. `FrameSequence` removes what the caller already has:
// - text is compared with the text that was delivered; the caller gets the rest only;
// - the other frames of an event are delivered together, when its last frame is there.

import { ConflictError, InvalidResponseError } from "./errors.js";
import { followEvents, type ServerSentEvent, type StreamOptions } from "./event_stream.js";
import type { Frame } from "./frames.js";
import { pause, type RawRequest, type Transport } from "./transport.js";

/** A frame, and the event up to which everything was delivered. Store `cursor` to continue after a reload. */
export type FollowedFrame = (Frame | ResetFrame) & { cursor: number };

/** The thread lost its newest events (a failover to a server without them): drop everything and read again. The iterator
 * continues with all frames from the beginning. */
export interface ResetFrame {
  type: "RESET";
  reason: string;
}

export interface FollowOptions extends StreamOptions {
  /** Continue after this event; messages that were being written then begin again with TEXT_MESSAGE_START. */
  after?: number;
  headers?: Record<string, string>;
}

const REWOUND = "FEED_REWOUND";

interface Item {
  kind: string;
  /** The text that the caller has. */
  text: string;
  /** How much of it this connection has confirmed; null before its START. */
  position: number | null;
  hasEnded: boolean;
}

/** Turns the events of several connections into frames without repetitions. */
export class FrameSequence {
  cursor: number;
  #items = new Map<string, Item>();
  #buffered: Frame[] = [];

  constructor(cursor: number) {
    this.cursor = cursor;
  }

  /** A new connection: what was not complete comes again. */
  reconnect(): void {
    this.#buffered = [];
    for (const item of this.#items.values()) item.position = null;
  }

  push(frame: Frame, sequence: number | null): Frame[] {
    if (sequence !== null && sequence <= this.cursor) return [];
    if (sequence === null && (this.#buffered.length || !isText(frame))) {
      this.#buffered.push(frame);
      return [];
    }
    const frames = [...this.#buffered, frame].flatMap((one) => this.#deliver(one));
    this.#buffered = [];
    if (sequence !== null) {
      this.cursor = sequence;
      for (const [key, item] of this.#items) if (item.hasEnded) this.#items.delete(key);
    }
    return frames;
  }

  #deliver(frame: Frame): Frame[] {
    if (frame.type === "RUN_FINISHED") return [...this.#dropLost(), frame];
    if (!isText(frame)) return [frame];
    const kind = frame.type.startsWith("TEXT") ? "TEXT_MESSAGE" : "REASONING_MESSAGE";
    const key = `${kind} ${frame.messageId}`;
    const item = this.#items.get(key);
    switch (frame.type) {
      case "TEXT_MESSAGE_START":
      case "REASONING_MESSAGE_START":
        if (item) item.position = 0;
        else this.#items.set(key, { kind, text: "", position: 0, hasEnded: false });
        return item ? [] : [frame];
      case "TEXT_MESSAGE_CONTENT":
      case "REASONING_MESSAGE_CONTENT":
        return item ? this.#grow(item, frame) : [frame];
      default:
        return item ? this.#end(item, frame) : [frame];
    }
  }

  #grow(item: Item, frame: Extract<TextFrame, { delta: string }>): Frame[] {
    const position = item.position ?? item.text.length;
    if (position === item.text.length) {
      // New text, as always without a reconnection. Reading the text so far would copy it for every token.
      item.text += frame.delta;
      item.position = item.text.length;
      return frame.delta ? [frame] : [];
    }
    const known = item.text.slice(position, position + frame.delta.length);
    item.position = position + frame.delta.length;
    if (!frame.delta.startsWith(known)) {
      item.text = item.text.slice(0, position) + frame.delta;
      return this.#restart(item, frame);
    }
    const rest = frame.delta.slice(known.length);
    item.text += rest;
    return rest ? [{ ...frame, delta: rest }] : [];
  }

  #end(item: Item, frame: TextFrame): Frame[] {
    const frames: Frame[] = [];
    if (item.position !== null && item.position < item.text.length) {
      // The stored text is shorter than the delivered one: its writer was killed before the rest was stored.
      item.text = item.text.slice(0, item.position);
      frames.push(...this.#restart(item, frame));
    }
    if (!item.hasEnded) frames.push(frame);
    item.hasEnded = true;
    return frames;
  }

  /** Text that differs from the delivered one: the message begins again, with all text so far. */
  #restart(item: Item, frame: TextFrame): Frame[] {
    const { messageId, timestamp, runId } = frame;
    const frames = [{ type: `${item.kind}_START`, messageId, timestamp, runId, restart: true }];
    const content = { type: `${item.kind}_CONTENT`, messageId, timestamp, runId, delta: item.text };
    return (item.text ? [...frames, content] : frames) as Frame[];
  }

  /** Messages that were open at a lost connection and that the server does not have any more. */
  #dropLost(): Frame[] {
    const frames: Frame[] = [];
    for (const [key, item] of this.#items) {
      if (item.hasEnded || item.position !== null) continue;
      const messageId = key.slice(item.kind.length + 1);
      frames.push(...([{ type: `${item.kind}_START`, messageId, restart: true }, { type: `${item.kind}_END`, messageId }] as Frame[]));
    }
    this.#items.clear();
    return frames;
  }
}

type TextFrame = Extract<Frame, { messageId: string; type: `${"TEXT_MESSAGE" | "REASONING_MESSAGE"}_${string}` }>;

function isText(frame: Frame): frame is TextFrame {
  return /^(TEXT|REASONING)_MESSAGE_(START|CONTENT|END)$/.test(frame.type);
}

/** Yield the frames of a stream in the monitor profile, over all its connections, until `isLast`. */
export async function* followFrames(
  transport: Transport,
  request: RawRequest,
  isLast: (frame: Frame) => boolean,
  options: FollowOptions,
): AsyncGenerator<FollowedFrame, void, undefined> {
  let sequence = new FrameSequence(options.after ?? 0);
  let failures = 0;
  for (;;) {
    let rewound: string | null = null;
    const next = (): RawRequest => {
      sequence.reconnect();
      const resumed = sequence.cursor ? { "Last-Event-ID": String(sequence.cursor) } : undefined;
      return { ...request, headers: { ...options.headers, ...resumed } };
    };
    try {
      for await (const event of followEvents(transport, next, options)) {
        const frame = parseFrame(event);
        if (frame.type === "RUN_ERROR" && frame.code === REWOUND) {
          rewound = frame.message;
          break;
        }
        if (!event.hasId && isConnectionFrame(frame)) continue;
        const number = event.hasId ? Number(event.id) : null;
        for (const one of sequence.push(frame, number)) {
          failures = 0;
          yield { ...one, cursor: sequence.cursor };
          if (isLast(one)) return;
        }
      }
    } catch (error) {
      // Without a cursor a 409 has another cause, such as two threads with a run of this id.
      if (!(error instanceof ConflictError) || !sequence.cursor) throw error;
      rewound = error.detail;
    }
    sequence = new FrameSequence(0);
    yield { type: "RESET", reason: rewound ?? "the stream ended", cursor: 0 };
    if (failures++) await pause(1000 * failures, options.signal); // a second reset without a frame between
  }
}

export function parseFrame(event: ServerSentEvent): Frame {
  let frame: unknown;
  try {
    frame = JSON.parse(event.data);
  } catch (error) {
    throw new InvalidResponseError(`a frame is not valid JSON: ${event.data.slice(0, 80)}`, { cause: error });
  }
  if (typeof frame !== "object" || frame === null || typeof (frame as Frame).type !== "string") {
    throw new InvalidResponseError(`a frame has no type: ${event.data.slice(0, 80)}`);
  }
  return frame as Frame;
}

/** Frames about the connection itself, and test notifications. */
function isConnectionFrame(frame: Frame): boolean {
  return frame.type === "RAW" || (frame.type === "CUSTOM" && (frame.name === "connected" || frame.name === "heartbeat"));
}
