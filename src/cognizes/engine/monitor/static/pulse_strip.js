// The pulse: events per second, the latency of notifications, and the other figures of the engine.

import { get } from "./api.js";
import { h, replace, s } from "./dom.js";
import { counted, number } from "./format.js";

const EVERY_MS = 2000;
const SAMPLES = 400;

export class PulseStrip {
  constructor(strip, panel) {
    this._latencies = [];
    this._offset = 0;
    this._rate = h("span.pulse-rate", {}, "–");
    this._line = s("polyline.spark", { points: "" });
    this._area = s("polygon.spark-area", { points: "" });
    this._state = h("span.dot");
    this._late = h("span.pulse-late", {}, "");
    this._panel = panel;
    const button = h(
      "button.pulse-button", { type: "button", "aria-expanded": "false", "aria-controls": "pulse-panel", title: "Figures of the engine" },
      this._state, s("svg.sparkline", { viewBox: "0 0 120 24", preserveAspectRatio: "none", "aria-hidden": "true" }, this._area, this._line),
      h("span.pulse-figures", {}, this._rate, this._late),
    );
    button.addEventListener("click", () => {
      panel.hidden = !panel.hidden;
      button.setAttribute("aria-expanded", String(!panel.hidden));
      this._draw();
      this._beat();
    });
    this._button = button;
    strip.append(button);
    document.addEventListener("visibilitychange", () => this._beat());
    this._beat();
  }

  close() {
    this._panel.hidden = true;
    this._button.setAttribute("aria-expanded", "false");
  }

  /** Records the age of a notification that arrived in the browser. */
  heard(createdAt) {
    const age = Date.now() + this._offset - new Date(createdAt).getTime();
    if (Number.isNaN(age)) return;
    this._latencies.push(Math.max(0, age));
    if (this._latencies.length > SAMPLES) this._latencies.shift();
    this._flash ??= requestAnimationFrame(() => this._showFlash());
  }

  /** Starts the animation again, once per frame. */
  _showFlash() {
    this._flash = null;
    this._rate.classList.remove("is-fresh");
    void this._rate.offsetWidth;
    this._rate.classList.add("is-fresh");
  }

  async _beat() {
    clearTimeout(this._timer);
    if (document.hidden) return;
    try {
      const asked = Date.now();
      this._figures = await get("api/debug/pulse");
      const answered = Date.now();
      // The server's clock against ours, half a round trip ago.
      this._offset = new Date(this._figures.now).getTime() - (asked + answered) / 2;
      this._draw();
    } catch (error) {
      if (error.status === 403) {
        // The figures are of all apps; a key of some apps does not see them.
        this._button.hidden = true;
        return;
      }
      this._state.dataset.state = "off";
      this._state.title = "The server does not answer";
    }
    this._timer = setTimeout(() => this._beat(), EVERY_MS);
  }

  _draw() {
    const figures = this._figures;
    if (!figures) return;
    const counts = figures.events_per_second;
    const now = counts.slice(-5).reduce((sum, one) => sum + one, 0) / 5;
    this._state.dataset.state = figures.listener.running ? "on" : "off";
    this._state.title = figures.listener.running ? "The listener is connected" : "The listener is disconnected";
    this._rate.textContent = `${now >= 10 ? number(Math.round(now)) : Number(now.toFixed(1))} events/s`;
    const latency = this._browserLatency();
    this._late.textContent = latency ? `${Math.round(latency.p50)} ms` : "";
    draw(this._line, this._area, counts, 120, 24);
    if (!this._panel.hidden) this._drawPanel(counts, latency);
  }

  _browserLatency() {
    if (!this._latencies.length) return null;
    const ordered = [...this._latencies].sort((one, other) => one - other);
    return { p50: ordered[Math.floor(ordered.length / 2)], p99: ordered[Math.floor((ordered.length - 1) * 0.99)], samples: ordered.length };
  }

  _drawPanel(counts, latency) {
    const figures = this._figures;
    const line = s("polyline.spark", {});
    const area = s("polygon.spark-area", {});
    draw(line, area, counts, 600, 80);
    const server = figures.notify_latency_ms;
    const ms = (value) => (value === null || value === undefined ? "–" : `${value < 10 ? value.toFixed(1) : Math.round(value)} ms`);
    replace(
      this._panel,
      h("div.pulse-chart", {}, h("div.label", {}, "Events per second, last minute"), s("svg.sparkline.is-large", { viewBox: "0 0 600 80", preserveAspectRatio: "none", role: "img", "aria-label": "Events per second in the last minute" }, area, line), h("div.pulse-peak", {}, `peak ${number(Math.max(...counts))}/s`)),
      h(
        "div.tiles", {},
        tile("Events", number(figures.events), "received by this process"),
        tile("Commit to server", `${ms(server.p50)}`, `p99 ${ms(server.p99)}`),
        tile("Commit to browser", latency ? ms(latency.p50) : "–", latency ? `p99 ${ms(latency.p99)}` : "no event since this page was opened"),
        tile("Listener", figures.listener.running ? "connected" : "disconnected", counted(figures.listener.reconnections, "reconnection"), figures.listener.running ? "good" : "bad"),
        tile("Missed notifications", number(figures.missed_notifications), "their events were read later"),
        tile("Write conflicts", number(figures.conflicts), `${number(figures.retries)} retried`),
        tile("Pool", `${figures.pool.in_use} / ${figures.pool.max}`, `${figures.pool.size} open`),
        tile("Clients", number(figures.clients.streams + figures.clients.websockets), `${figures.clients.streams} SSE, ${figures.clients.websockets} WebSocket`),
      ),
    );
  }
}

function tile(name, value, hint, state) {
  return h("div.tile", { "data-figure": name, "data-state": state }, h("div.label", {}, name), h("div.tile-value", {}, value), h("div.tile-hint", {}, hint));
}

/** Draws counts as a line with the area below it. */
function draw(line, area, counts, width, height) {
  const top = Math.max(4, ...counts);
  const step = width / (counts.length - 1);
  const points = counts.map((count, place) => `${(place * step).toFixed(1)},${(height - 2 - (count / top) * (height - 5)).toFixed(1)}`);
  line.setAttribute("points", points.join(" "));
  area.setAttribute("points", `0,${height} ${points.join(" ")} ${width},${height}`);
}
