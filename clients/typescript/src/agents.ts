// Agents that the server hosts.

import { AgentThread, type ThreadOptions } from "./agent_thread.js";
import type { AgentList } from "./rest_types.js";
import type { CallOptions, Transport } from "./transport.js";

export class Agents {
  readonly #transport: Transport;

  constructor(transport: Transport) {
    this.#transport = transport;
  }

  /** The agents that the caller may use, with what they can do. */
  async list(options?: CallOptions): Promise<AgentList["agents"]> {
    return (await this.#transport.call("GET /agui", {}, options)).agents;
  }

  async capabilities(agent: string, options?: CallOptions): Promise<unknown> {
    return this.#transport.call("GET /agui/{agent}/capabilities", { path: { agent } }, options);
  }

  /** A thread of an agent; it need not exist. Call `start()`, and `stop()` at the end. */
  thread(agent: string, threadId: string, options?: ThreadOptions): AgentThread {
    return new AgentThread(this.#transport, agent, threadId, options);
  }
}
