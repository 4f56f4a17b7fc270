// A WebSocket that stays: it tells that something happened; what happened is read by REST.

import { ticketed, url } from "./api.js";

const FIRST_PAUSE = 500;
const LONGEST_PAUSE = 8000;

/** Follows a thread, or everything ("*"). `onItem(payload)` for each pulse, `onOpen(again)` after each connection. */
export function follow(name, { onItem, onOpen, onState, after }) {
  let socket = null;
  let closed = false;
  let pause = FIRST_PAUSE;
  let wasOpen = false;

  async function connect() {
    if (closed) return;
    try {
      const query = after ? { after: after() } : {};
      const address = await ticketed(url(`ws/events/${encodeURIComponent(name)}`, query).replace(/^http/, "ws"));
      if (closed) return;
      socket = new WebSocket(address);
    } catch {
      return again();
    }
    socket.onopen = () => {
      pause = FIRST_PAUSE;
      onState?.(true);
      onOpen?.(wasOpen);
      wasOpen = true;
    };
    socket.onmessage = (message) => {
      let item;
      try {
        item = JSON.parse(message.data);
      } catch {
        return;
      }
      if (item?.payload) onItem(item.payload, item);
    };
    socket.onclose = () => {
      onState?.(false);
      again();
    };
  }

  function again() {
    if (closed) return;
    setTimeout(connect, pause * (0.7 + 0.6 * Math.random()));
    pause = Math.min(pause * 2, LONGEST_PAUSE);
  }

  connect();
  return () => {
    closed = true;
    socket?.close();
  };
}
