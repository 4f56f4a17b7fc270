// A form that sends a signal with a JSON payload to a waiting run.

import { h, icon } from "./dom.js";

/** `key` is the correlation key that the run waits for, or null; `send({ correlation_key, payload })`, `failed(error)`. */
export function signalForm({ key, send, failed }) {
  const name = h("input", { type: "text", value: key ?? "", placeholder: "correlation key", "aria-label": "Correlation key", class: "signal-key", autocomplete: "off" });
  const payload = h("textarea", { rows: "2", placeholder: '{"approved": true}', "aria-label": `Payload for ${key ?? "the signal"} as JSON`, class: "signal-payload", spellcheck: "false" });
  const button = h("button.primary", { type: "submit" }, icon("send"), "Send signal");
  const form = h("form.signal", {}, h("div.label", {}, "Waiting for a signal"), name, payload, h("div.buttons", {}, button));
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    let body = null;
    try {
      body = payload.value.trim() ? JSON.parse(payload.value) : null;
    } catch (error) {
      return failed(new Error(`The payload is not JSON: ${error.message}`));
    }
    button.disabled = true;
    await send({ correlation_key: name.value, payload: body });
    button.disabled = false;
  });
  return form;
}
