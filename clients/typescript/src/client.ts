// The client: one object per server and caller.

import { Agents } from "./agents.js";
import { Attachments, Memory, Runs, Sessions, Timelines, Usage } from "./resources.js";
import { SignalPull, type SignalPullOptions } from "./signals.js";
import { Transport, type CallOptions, type ClientOptions, type OperationInput, type OperationName, type OperationResponse } from "./transport.js";

/** A client of Cognizes Engine. It holds no connection: streams and subscriptions end by their own `signal` or `close`. */
export class CognizesClient {
  readonly sessions: Sessions;
  readonly timelines: Timelines;
  readonly runs: Runs;
  readonly memory: Memory;
  readonly attachments: Attachments;
  readonly usage: Usage;
  readonly agents: Agents;
  readonly transport: Transport;

  constructor(options: ClientOptions | string) {
    this.transport = new Transport(typeof options === "string" ? { baseUrl: options } : options);
    this.sessions = new Sessions(this.transport);
    this.timelines = new Timelines(this.transport);
    this.runs = new Runs(this.transport);
    this.memory = new Memory(this.transport);
    this.attachments = new Attachments(this.transport);
    this.usage = new Usage(this.transport);
    this.agents = new Agents(this.transport);
  }

  /** Call any operation of the REST API by its method and path, with the types of the OpenAPI document:
   * `client.call("GET /api/schedules", { query: { app_name: "shop" } })`. */
  async call<N extends OperationName>(
    name: N,
    ...[input, options]: {} extends OperationInput<N> ? [OperationInput<N>?, CallOptions?] : [OperationInput<N>, CallOptions?]
  ): Promise<OperationResponse<N>> {
    return this.transport.call(name, (input ?? {}) as OperationInput<N>, options);
  }

  /** A copy of a thread that keeps itself up to date by Signal-Pull. Call `start()`, and `close()` at the end. */
  signals(contextId: string, options?: SignalPullOptions): SignalPull {
    return new SignalPull(this.transport, contextId, options);
  }
}
