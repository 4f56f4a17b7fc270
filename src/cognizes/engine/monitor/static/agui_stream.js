// Reading AG-UI frames from a response: the text of messages as it grows.

/** Calls `onText(messageId, text)` for every growth, until the stream ends or `signal` aborts it. */
export async function readText(response, onText) {
  const texts = new Map();
  for await (const frame of frames(response)) {
    if (frame.type === "MESSAGES_SNAPSHOT") {
      for (const message of frame.messages) if (typeof message.content === "string") texts.set(message.id, message.content);
    } else if (frame.type === "TEXT_MESSAGE_START") {
      if (!texts.has(frame.messageId)) texts.set(frame.messageId, "");
      if (frame.role !== "user" && texts.get(frame.messageId)) onText(frame.messageId, texts.get(frame.messageId));
    } else if (frame.type === "TEXT_MESSAGE_CONTENT") {
      const text = (texts.get(frame.messageId) ?? "") + frame.delta;
      texts.set(frame.messageId, text);
      onText(frame.messageId, text);
    }
  }
}

async function* frames(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  while (true) {
    const { value, done } = await reader.read();
    if (done) return;
    const blocks = (rest + value).split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      const data = block.split("\n").filter((line) => line.startsWith("data:")).map((line) => line.slice(5).trim()).join("\n");
      if (data) yield JSON.parse(data);
    }
  }
}
