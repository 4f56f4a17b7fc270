// Schedules that create runs: handler, times, the next one; pause, resume, delete.

import { get, request } from "./api.js";
import { h, icon, replace } from "./dom.js";
import { duration, exact } from "./format.js";

const MOST = 100;

export class Schedules {
  /** `actions`: failed(error), may(permission), query() the app and the user that the caller may see. */
  constructor(actions) {
    this._actions = actions;
    this._rows = h("tbody");
    const names = ["Schedule", "Handler", "Times", "Next", "App", "User", ""];
    this.element = h(
      "section.schedules", { hidden: true, "aria-label": "Schedules" }, h("h2", {}, "Schedules"),
      h("div.runs-table", { tabindex: "0", role: "region", "aria-label": "Schedules of all apps" }, h("table", {}, h("thead", {}, h("tr", {}, names.map((name) => h("th", { scope: "col" }, name)))), this._rows)),
    );
  }

  async load() {
    try {
      const { schedules } = await get("api/schedules", { ...this._actions.query(), limit: MOST });
      this.element.hidden = !schedules.length;
      replace(this._rows, schedules.map((schedule) => this._row(schedule)));
    } catch (error) {
      // A key of an end user may not list schedules.
      this.element.hidden = true;
      if (error.status !== 403) this._actions.failed(error);
    }
  }

  _row(schedule) {
    const isPaused = schedule.paused_at !== null;
    const times = schedule.cron ? `${schedule.cron} (${schedule.timezone})` : `every ${duration(schedule.every_seconds * 1000)}`;
    const act = (path, method) => () => this._act(schedule, path, method);
    return h(
      "tr", { "data-schedule": schedule.id },
      h("td", {}, schedule.name), h("td", {}, h("code", {}, schedule.handler)), h("td", {}, times),
      h("td", {}, isPaused ? h("span.pill", { "data-status": "pending" }, "paused") : h("time", {}, exact(schedule.next_times[0]))),
      h("td", {}, schedule.app_name), h("td", {}, schedule.user_id),
      h(
        "td", {}, this._actions.may("write") && h("div.buttons", {}, isPaused ? h("button.link", { type: "button", onclick: act("/resume", "POST") }, icon("play"), "Resume") : h("button.link", { type: "button", onclick: act("/pause", "POST") }, icon("pause"), "Pause"),
          h("button.link", { type: "button", "aria-label": `Delete the schedule ${schedule.name}`, onclick: act("", "DELETE") }, icon("trash"), "Delete")),
      ),
    );
  }

  async _act(schedule, path, method) {
    try {
      await request(`api/schedules/${encodeURIComponent(schedule.id)}${path}`, { method, query: { app_name: schedule.app_name } });
    } catch (error) {
      this._actions.failed(error);
    }
    await this.load();
  }
}
