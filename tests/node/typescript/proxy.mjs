// A TCP proxy that cuts connections. `cut()` resets all of them; `upstream` may be changed while it runs.

import { connect, createServer } from "node:net";

export async function openProxy(upstream) {
  const pairs = new Set();
  const proxy = {
    upstream: new URL(upstream),
    /** How many new connections are closed when their first request is there: "before" or "after" it is passed on. */
    dropNext: 0,
    dropWhen: "before",
    cuts: 0,
    cut() {
      proxy.cuts += 1;
      for (const pair of pairs) for (const socket of pair) socket.resetAndDestroy();
    },
    close: () => new Promise((resolve) => { proxy.cut(); server.close(resolve); }),
  };
  const server = createServer((client) => {
    const target = connect(Number(proxy.upstream.port), proxy.upstream.hostname);
    const pair = [client, target];
    pairs.add(pair);
    for (const [one, other] of [[client, target], [target, client]]) {
      one.on("error", () => other.destroy());
      one.on("close", () => { other.destroy(); pairs.delete(pair); });
    }
    client.on("data", (data) => {
      const isDropped = proxy.dropNext > 0 && data.toString("latin1").startsWith("POST ");
      if (isDropped) proxy.dropNext -= 1;
      if (isDropped && proxy.dropWhen === "before") return client.resetAndDestroy();
      target.write(data);
      if (isDropped) target.once("data", () => client.resetAndDestroy());
      else if (!target.isPiped) target.isPiped = target.pipe(client);
    });
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  proxy.url = `http://127.0.0.1:${server.address().port}`;
  return proxy;
}
