export { AgentThread } from "./agent_thread.js";
export type { RunResult, SendOptions, ThreadOptions, ThreadRunStatus, ThreadSnapshot } from "./agent_thread.js";
export { Agents } from "./agents.js";
export { CognizesClient } from "./client.js";
export {
  ApiError,
  AuthenticationError,
  CognizesError,
  ConflictError,
  ConnectionLostError,
  InvalidInputError,
  InvalidResponseError,
  LimitExceededError,
  NotFoundError,
  PermissionDeniedError,
  TimeoutError,
  TooManyRequestsError,
  UnavailableError,
} from "./errors.js";
export type { ApiErrorDetails, OpenInterrupt } from "./errors.js";
export { EventParser } from "./event_stream.js";
export type { ConnectionState, ServerSentEvent, StreamOptions } from "./event_stream.js";
export type { FollowedFrame, FollowOptions, ResetFrame } from "./follow.js";
export { FoldedThread, messageText } from "./frames.js";
export type { Frame, Interrupt, Message, RunOutcome } from "./frames.js";
export { applyPatch } from "./json_patch.js";
export type { PatchOperation } from "./json_patch.js";
export { Attachments, DELETE, Memory, Runs, Sessions, Timelines, Usage } from "./resources.js";
export type { Owner, UploadData } from "./resources.js";
export { SignalPull } from "./signals.js";
export type { PulledMessage, Signal, SignalPullEvents, SignalPullOptions } from "./signals.js";
export { newId } from "./transport.js";
export type { CallOptions, ClientOptions, OperationBody, OperationInput, OperationName, OperationQuery, OperationResponse } from "./transport.js";
export type * from "./rest_types.js";
