// Calls that must not compile. `tsc` fails if one of them does: an unused `@ts-expect-error` is an error.

import { CognizesClient, ConflictError, type FollowedFrame, type SessionView } from "@cognizes/client";
import { useThread } from "@cognizes/client/react";

const client = new CognizesClient({ baseUrl: "http://localhost" });

export async function rightCalls(): Promise<void> {
  const session: SessionView = await client.sessions.create({ app_name: "shop", user_id: "ada" });
  await client.sessions.append(session.thread_id, { author: "user", event_type: "note", content: { text: "x" } });
  await client.call("GET /health");
  await client.call("GET /api/schedules", { query: { app_name: "shop" } });
  await client.call("DELETE /api/queues/{name}", { path: { name: "gpu" } });
  for await (const frame of client.runs.follow("run")) show(frame);
  client.signals("thread").on("content", ({ messageId, text }) => console.log(messageId.length, text.length));
}

function show(frame: FollowedFrame): string | number {
  switch (frame.type) {
    case "TEXT_MESSAGE_CONTENT":
      return frame.delta;
    case "RUN_FINISHED":
      return frame.status ?? frame.cursor;
    default:
      // @ts-expect-error other frames have no delta of text
      return frame.delta.length;
  }
}

export async function wrongCalls(): Promise<void> {
  // @ts-expect-error the address is missing
  new CognizesClient({});
  // @ts-expect-error user_id is missing
  await client.sessions.create({ app_name: "shop" });
  // @ts-expect-error a misspelt field
  await client.sessions.create({ app_name: "shop", user_id: "ada", titel: "x" });
  // @ts-expect-error an event needs a type
  await client.sessions.append("thread", { author: "user" });
  // @ts-expect-error app_name is required
  await client.sessions.list({ limit: 3 });
  // @ts-expect-error there is no such operation
  await client.call("GET /api/nowhere");
  // @ts-expect-error the path needs a name
  await client.call("DELETE /api/queues/{name}");
  // @ts-expect-error a number is no name
  await client.call("DELETE /api/queues/{name}", { path: { name: 3 } });
  // @ts-expect-error a kind that does not exist
  await client.memory.add({ app_name: "shop", user_id: "ada" }, [], "novel");
  // @ts-expect-error the result has no such field
  (await client.sessions.get("thread")).threadid;
  // @ts-expect-error there is no such kind of event
  client.signals("thread").on("contents", () => undefined);
  // @ts-expect-error the hook needs an agent
  useThread({ client, threadId: "t" });
  const error: unknown = new Error();
  if (error instanceof ConflictError) {
    // @ts-expect-error `actual` may be null
    error.actual.toFixed();
  }
}
