// AG-UI frames, as the engine sends them, and the messages that they describe.

import type {
  ActivityMessage,
  AssistantMessage,
  DeveloperMessage,
  ReasoningMessage,
  SystemMessage,
  ToolMessage,
  UserMessage,
} from "./rest_types.js";
import { applyPatch, type PatchOperation } from "./json_patch.js";

/** A message of a thread. */
export type Message = { role: string } & (
  | (UserMessage & { role: "user" })
  | (AssistantMessage & { role: "assistant" })
  | (ToolMessage & { role: "tool" })
  | (ReasoningMessage & { role: "reasoning" })
  | (ActivityMessage & { role: "activity" })
  | (SystemMessage & { role: "system" })
  | (DeveloperMessage & { role: "developer" })
);

/** A question of a run that waits for a person. */
export interface Interrupt {
  id: string;
  reason?: string;
  message?: string;
  toolCallId?: string;
  responseSchema?: unknown;
  [name: string]: unknown;
}

export type RunOutcome =
  | { type: "success"; pendingToolCallIds?: string[] }
  | { type: "interrupt"; interrupts: Interrupt[] }
  | { type: "cancelled" };

interface Base {
  timestamp?: number;
  runId?: string;
}

/** The frames of hosted agents and of runs. */
export type Frame = Base &
  (
    | { type: "RUN_STARTED"; threadId: string; runId: string; input?: { messages?: Message[] } }
    | {
        type: "RUN_FINISHED";
        threadId: string;
        runId: string;
        /** Of a followed run: how it ended. */
        status?: "completed" | "failed" | "cancelled";
        error?: string;
        /** Of a hosted agent. */
        outcome?: RunOutcome;
        result?: unknown;
      }
    | { type: "RUN_ERROR"; message: string; code?: string }
    | { type: "STEP_STARTED" | "STEP_FINISHED"; stepName: string }
    | { type: "TEXT_MESSAGE_START"; messageId: string; role?: string; restart?: true }
    | { type: "TEXT_MESSAGE_CONTENT"; messageId: string; delta: string }
    | { type: "TEXT_MESSAGE_END"; messageId: string }
    | { type: "REASONING_START" | "REASONING_END"; messageId: string }
    | { type: "REASONING_MESSAGE_START"; messageId: string; role?: string; restart?: true }
    | { type: "REASONING_MESSAGE_CONTENT"; messageId: string; delta: string }
    | { type: "REASONING_MESSAGE_END"; messageId: string }
    | { type: "REASONING_ENCRYPTED_VALUE"; subtype: "message" | "tool-call"; entityId: string; encryptedValue: string }
    | { type: "TOOL_CALL_START"; toolCallId: string; toolCallName: string; parentMessageId?: string }
    | { type: "TOOL_CALL_ARGS"; toolCallId: string; delta: string }
    | { type: "TOOL_CALL_END"; toolCallId: string }
    | { type: "TOOL_CALL_RESULT"; toolCallId: string; messageId: string; content: string }
    | { type: "STATE_SNAPSHOT"; snapshot: Record<string, unknown> }
    | { type: "STATE_DELTA"; delta: PatchOperation[] }
    | { type: "MESSAGES_SNAPSHOT"; messages: Message[] }
    | { type: "ACTIVITY_SNAPSHOT"; messageId: string; activityType: string; content: Record<string, unknown>; replace?: boolean }
    | { type: "ACTIVITY_DELTA"; messageId: string; patch: PatchOperation[] }
    | { type: "SUBAGENT_STARTED"; subagentRunId: string; name: string }
    | { type: "SUBAGENT_FINISHED" | "SUBAGENT_ERROR"; subagentRunId: string; message?: string }
    | { type: "CUSTOM"; name: string; value?: unknown }
    | { type: "RAW"; event: unknown }
  );

/** The text of a message, without images and files. */
export function messageText(message: Message): string {
  const { content } = message;
  if (typeof content === "string") return content;
  if (!Array.isArray(content)) return "";
  return content.map((part) => (part.type === "text" ? part.text : "")).join("");
}

/** What frames have made of a thread. Its parts are replaced when they change, never changed in place, so that a user
 * interface may compare them by identity. */
export class FoldedThread {
  messages: readonly Message[] = [];
  state: Record<string, unknown> = {};
  /** Ids of messages that are being written. */
  open: ReadonlySet<string> = new Set();

  /** Apply a frame; return whether it changed anything. */
  fold(frame: Frame): boolean {
    switch (frame.type) {
      case "MESSAGES_SNAPSHOT":
        this.messages = frame.messages;
        this.open = new Set();
        return true;
      case "RUN_STARTED":
        return (frame.input?.messages ?? []).filter((message) => this.#add(message)).length > 0;
      case "TEXT_MESSAGE_START":
      case "REASONING_MESSAGE_START":
        return this.#begin(frame.messageId, frame.type === "TEXT_MESSAGE_START" ? (frame.role ?? "assistant") : "reasoning", frame.restart);
      case "TEXT_MESSAGE_CONTENT":
      case "REASONING_MESSAGE_CONTENT":
        return this.#change(frame.messageId, (message) => ({ ...message, content: ((message.content as string | null | undefined) ?? "") + frame.delta }) as Message);
      case "TEXT_MESSAGE_END":
      case "REASONING_MESSAGE_END":
        return this.#end(frame.messageId);
      case "TOOL_CALL_START":
        return this.#addCall(frame.toolCallId, frame.toolCallName, frame.parentMessageId);
      case "TOOL_CALL_ARGS":
        return this.#changeCall(frame.toolCallId, frame.delta);
      case "TOOL_CALL_RESULT":
        return this.#addResult(frame.messageId, frame.toolCallId, frame.content);
      case "ACTIVITY_SNAPSHOT":
      case "ACTIVITY_DELTA":
        return this.#foldActivity(frame);
      case "STATE_SNAPSHOT":
        this.state = frame.snapshot;
        return true;
      case "STATE_DELTA":
        this.state = applyPatch(this.state, frame.delta) as Record<string, unknown>;
        return true;
      default:
        return false;
    }
  }

  find(id: string): Message | undefined {
    return this.messages.findLast((message) => message.id === id);
  }

  /** Mark all messages as written: the run has ended. */
  closeAll(): void {
    if (this.open.size) this.open = new Set();
  }

  #add(message: Message): boolean {
    if (this.find(message.id)) return false;
    this.messages = [...this.messages, message];
    return true;
  }

  #begin(id: string, role: string, restart = false): boolean {
    const isNew = this.#add({ id, role, content: "" } as Message);
    if (!isNew && restart) this.#change(id, (message) => ({ ...message, content: "" }) as Message);
    this.open = new Set(this.open).add(id);
    return true;
  }

  #end(id: string): boolean {
    if (!this.open.has(id)) return false;
    const open = new Set(this.open);
    open.delete(id);
    this.open = open;
    return true;
  }

  #change(id: string, change: (message: Message) => Message): boolean {
    // The message that grows is one of the last.
    const at = this.messages.findLastIndex((message) => message.id === id);
    const message = this.messages[at];
    if (message === undefined) return false;
    this.messages = this.messages.with(at, change(message));
    return true;
  }

  #addCall(id: string, name: string, parentId: string | undefined): boolean {
    if (this.#ownerOf(id) >= 0) return false;
    const call = { id, type: "function" as const, function: { name, arguments: "" } };
    const parent = parentId === undefined ? undefined : this.find(parentId);
    if (parent?.role === "assistant") {
      return this.#change(parent.id, (message) => ({ ...message, toolCalls: [...((message as AssistantMessage).toolCalls ?? []), call] }) as Message);
    }
    const owner = { id: parentId !== undefined && !parent ? parentId : id, role: "assistant", toolCalls: [call] };
    this.messages = [...this.messages, owner as Message];
    return true;
  }

  #changeCall(id: string, delta: string): boolean {
    const owner = this.messages[this.#ownerOf(id)];
    if (!owner) return false;
    const toolCalls = (owner as AssistantMessage).toolCalls?.map((call) =>
      call.id === id ? { ...call, function: { ...call.function, arguments: call.function.arguments + delta } } : call,
    );
    return this.#change(owner.id, (message) => ({ ...message, toolCalls }) as Message);
  }

  #addResult(id: string, toolCallId: string, content: string): boolean {
    if (this.find(id)) return false;
    const owner = this.#ownerOf(toolCallId);
    let at = owner < 0 ? this.messages.length : owner + 1;
    while (this.messages[at]?.role === "tool") at += 1;
    this.messages = this.messages.toSpliced(at, 0, { id, role: "tool", toolCallId, content } as Message);
    return true;
  }

  #ownerOf(toolCallId: string): number {
    return this.messages.findLastIndex((message) => message.role === "assistant" && message.toolCalls?.some((call) => call.id === toolCallId));
  }

  #foldActivity(frame: Extract<Frame, { type: "ACTIVITY_SNAPSHOT" | "ACTIVITY_DELTA" }>): boolean {
    const message = this.find(frame.messageId);
    if (frame.type === "ACTIVITY_DELTA") {
      if (message?.role !== "activity") return false;
      return this.#change(message.id, () => ({ ...message, content: applyPatch(message.content, frame.patch) }) as Message);
    }
    const activity = { id: frame.messageId, role: "activity", activityType: frame.activityType, content: frame.content } as Message;
    if (!message) return this.#add(activity);
    return message.role === "activity" && frame.replace !== false && this.#change(message.id, () => activity);
  }
}
