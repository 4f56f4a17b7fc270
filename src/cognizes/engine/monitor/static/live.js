// A WebSocket with reconnection. Its messages announce events; REST has their content.

import { ticketed, url } from "./api.js";

const FIRST_PAUSE = 500;
const LONGEST_PAUSE = 8000;
const REWOUND = 4409; // the close code of a feed whose thread lost events in a failover

/**
 * Follows a thread, or everything ("*"). `onItem(payload)` for each notification, `onOpen(again)` after each connection,
 * `onState(isOpen)`, and `onRewound()` when the thread lost events: then it ends, and the thread is to be read again.
 */
export function follow(name, { onItem, onOpen, onState, onRewound, after }) {
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
    socket.onclose = ({ code }) => {
      if (closed) return;
      if (code === REWOUND) {
        closed = true;
        return onRewound?.();
      }
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
