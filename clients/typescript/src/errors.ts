// Errors of the client.
//
//   CognizesError
//   ├── ApiError                     the server answered with an error: status, detail, requestId
//   │   ├── InvalidInputError        400, 422: `errors` says where
//   │   ├── AuthenticationError      401
//   │   ├── PermissionDeniedError    403
//   │   ├── NotFoundError            404, 410
//   │   ├── ConflictError            409: `expected`, `actual`, `interrupts`
//   │   ├── LimitExceededError       413
//   │   ├── TooManyRequestsError     429: `retryAfterMs`
//   │   └── UnavailableError         502, 503, 504: `retryAfterMs`
//   ├── ConnectionLostError          no answer, or a stream that ended too early
//   │   └── TimeoutError             no answer in time
//   └── InvalidResponseError         an answer that is not of the engine (HTML of a proxy, a frame that is not JSON)
//
// A call that its own `signal` aborts throws the reason of that signal, as `fetch` does.

import type { Problem } from "./rest_types.js";

export class CognizesError extends Error {
  constructor(message: string, options?: { cause?: unknown }) {
    super(message, options);
    this.name = new.target.name;
  }
}

/** An open question of a run, as the server lists it with a 409. */
export interface OpenInterrupt {
  id: string;
  reason?: string;
  message?: string;
  [name: string]: unknown;
}

export interface ApiErrorDetails {
  status: number;
  /** What is wrong, in the words of the server. */
  detail: string;
  /** The request, as the logs of the server name it. */
  requestId: string | null;
  /** When to try again, if the server said so. */
  retryAfterMs: number | null;
  /** The problem document; null if the answer was none, such as the HTML page of a proxy. */
  problem: (Problem & Record<string, unknown>) | null;
  /** Method and path of the request. */
  request: string;
}

export class ApiError extends CognizesError implements ApiErrorDetails {
  readonly status: number;
  readonly detail: string;
  readonly requestId: string | null;
  readonly retryAfterMs: number | null;
  readonly problem: (Problem & Record<string, unknown>) | null;
  readonly request: string;

  constructor(details: ApiErrorDetails) {
    super(`${details.status} for ${details.request}: ${details.detail}`);
    this.status = details.status;
    this.detail = details.detail;
    this.requestId = details.requestId;
    this.retryAfterMs = details.retryAfterMs;
    this.problem = details.problem;
    this.request = details.request;
  }
}

export class InvalidInputError extends ApiError {
  /** Which arguments are wrong, and why. */
  get errors(): { at: (string | number)[]; message: string; type: string }[] {
    return (this.problem?.errors ?? []) as { at: (string | number)[]; message: string; type: string }[];
  }
}

export class AuthenticationError extends ApiError {}
export class PermissionDeniedError extends ApiError {}
export class NotFoundError extends ApiError {}

export class ConflictError extends ApiError {
  /** The version that the caller expected; null if the conflict is not about a version. */
  get expected(): number | null {
    return this.problem?.expected ?? null;
  }

  /** The version that the thread has. */
  get actual(): number | null {
    return this.problem?.actual ?? null;
  }

  /** The questions that a waiting run asks; empty if the conflict is not about them. */
  get interrupts(): OpenInterrupt[] {
    const found = this.problem?.["interrupts"];
    return Array.isArray(found) ? (found as OpenInterrupt[]) : [];
  }
}

export class LimitExceededError extends ApiError {}
export class TooManyRequestsError extends ApiError {}
export class UnavailableError extends ApiError {}
export class ConnectionLostError extends CognizesError {}
export class TimeoutError extends ConnectionLostError {}
export class InvalidResponseError extends CognizesError {}

const CLASS_OF_STATUS: Record<number, typeof ApiError> = {
  400: InvalidInputError,
  401: AuthenticationError,
  403: PermissionDeniedError,
  404: NotFoundError,
  409: ConflictError,
  410: NotFoundError,
  413: LimitExceededError,
  422: InvalidInputError,
  429: TooManyRequestsError,
  502: UnavailableError,
  503: UnavailableError,
  504: UnavailableError,
};
const SHOWN_CHARACTERS = 200;

/** Return the error of a response that is not OK. It reads the body. */
export async function errorOfResponse(request: string, response: Response): Promise<ApiError> {
  const text = await response.text().catch(() => "");
  const problem = parseProblem(text);
  const details: ApiErrorDetails = {
    status: response.status,
    detail: problem?.detail ?? describeBody(response, text),
    requestId: response.headers.get("x-request-id") ?? problem?.request_id ?? null,
    retryAfterMs: retryAfter(response.headers.get("retry-after")),
    problem,
    request,
  };
  return new (CLASS_OF_STATUS[response.status] ?? ApiError)(details);
}

/** Return the beginning of a body that is no problem document, on one line. */
export function describeBody(response: Response, text: string): string {
  const kind = response.headers.get("content-type")?.split(";")[0] || "no content type";
  const start = text.slice(0, SHOWN_CHARACTERS * 10).replace(/<[^>]*>/g, " ").replace(/\s+/g, " ").trim();
  const shown = start.length > SHOWN_CHARACTERS ? `${start.slice(0, SHOWN_CHARACTERS)}…` : start;
  return `${response.statusText || "the body is not a problem document"} (${kind})${shown ? `: ${shown}` : ""}`;
}

/** Return the milliseconds of a `Retry-After` header: seconds, or a date. */
export function retryAfter(header: string | null, now = Date.now()): number | null {
  if (!header) return null;
  const seconds = Number(header);
  if (Number.isFinite(seconds)) return seconds >= 0 ? seconds * 1000 : null;
  const moment = Date.parse(header);
  return Number.isNaN(moment) ? null : Math.max(moment - now, 0);
}

function parseProblem(text: string): (Problem & Record<string, unknown>) | null {
  try {
    const value: unknown = JSON.parse(text);
    const isProblem = typeof value === "object" && value !== null && "detail" in value && typeof value.detail === "string";
    return isProblem ? (value as unknown as Problem & Record<string, unknown>) : null;
  } catch {
    return null; // HTML or plain text; the caller describes the body instead
  }
}
