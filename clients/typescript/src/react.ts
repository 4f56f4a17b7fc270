// A React hook for a thread of a hosted agent.

import { useEffect, useMemo, useSyncExternalStore } from "react";
import type { AgentThread, ThreadOptions, ThreadSnapshot } from "./agent_thread.js";
import type { CognizesClient } from "./client.js";

export interface UseThreadOptions extends ThreadOptions {
  /** One client for the whole application: create it outside of components. */
  client: CognizesClient;
  /** The name of the agent. */
  agent: string;
  /** The id of the thread; keep it, for example in the URL, to find the thread again after a reload. */
  threadId: string;
}

/** A thread at this moment, and what can be done with it. The functions never change. */
export type UseThread = ThreadSnapshot & Pick<AgentThread, "send" | "answer" | "respond" | "cancel" | "loadOlder">;

/** Show a thread of an agent. It connects when the component mounts, also to a run that is active since before a reload,
 * and disconnects when it unmounts; the run continues on the server. Other options than client, agent, thread and user
 * are read when one of these changes. */
export function useThread(options: UseThreadOptions): UseThread {
  const { client, agent, threadId, userId } = options;
  const thread = useMemo(
    () => client.agents.thread(agent, threadId, options),
    // eslint-disable-next-line react-hooks/exhaustive-deps -- an object literal is a new one in each render
    [client, agent, threadId, userId],
  );
  useEffect(() => {
    thread.start();
    return thread.stop;
  }, [thread]);
  const snapshot = useSyncExternalStore(thread.subscribe, thread.getSnapshot, thread.getSnapshot);
  const { send, answer, respond, cancel, loadOlder } = thread;
  return useMemo(() => ({ ...snapshot, send, answer, respond, cancel, loadOlder }), [snapshot, send, answer, respond, cancel, loadOlder]);
}

export type { AgentThread, RunResult, SendOptions, ThreadOptions, ThreadRunStatus, ThreadSnapshot } from "./agent_thread.js";
export type { Interrupt, Message } from "./frames.js";
