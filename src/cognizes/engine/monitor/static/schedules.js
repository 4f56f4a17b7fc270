// Schedules that create runs: handler, times, the next one; create, pause, resume, delete.

import { get, post, request } from "./api.js";
import { h, icon, replace } from "./dom.js";
import { duration, exact } from "./format.js";

const MOST = 100;
const COLUMNS = ["Schedule", "Handler", "Times", "Next", "App", "User", "Actions"];

export class Schedules {
  /** `actions`: failed(error), may(permission), query() the app and the user that the caller may see. */
  constructor(actions) {
    this._actions = actions;
    this._rows = h("tbody");
    this._empty = h("p.empty-line", {}, "No schedules. A schedule creates runs of a handler at fixed times; workers execute them.");
    this._table = h("div.runs-table", { tabindex: "0", role: "region", "aria-label": "Schedules of all apps" }, h("table", {}, h("thead", {}, h("tr", {}, COLUMNS.map((name) => h("th", { scope: "col" }, name)))), this._rows));
    this._new = h("button", { type: "button", id: "new-schedule", onclick: () => this._create() }, icon("plus"), "New schedule");
    this.element = h("section.schedules", { hidden: true, "aria-label": "Schedules" }, h("div.runs-head", {}, h("h2", {}, "Schedules"), this._new), this._empty, this._table);
  }

  async load() {
    try {
      const { schedules } = await get("api/schedules", { ...this._actions.query(), limit: MOST });
      this.element.hidden = false;
      this._new.hidden = !this._actions.may("write");
      this._empty.hidden = schedules.length > 0;
      this._table.hidden = !schedules.length;
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
    const button = (name, word, props) => h("button.link", { type: "button", ...props }, icon(name), word);
    const cell = (column, content) => h("td", { "data-column": column, title: typeof content === "string" ? content : undefined }, content);
    return h(
      "tr", { "data-schedule": schedule.id },
      cell("Schedule", schedule.name), cell("Handler", h("code", {}, schedule.handler)), cell("Times", times),
      cell("Next", isPaused ? h("span.pill", { "data-status": "pending" }, "paused") : h("time", {}, exact(schedule.next_times[0]))),
      cell("App", schedule.app_name), cell("User", schedule.user_id),
      cell("Actions", this._actions.may("write") && h("div.buttons", {}, isPaused ? button("play", "Resume", { onclick: act("/resume", "POST") }) : button("pause", "Pause", { onclick: act("/pause", "POST") }), button("trash", "Delete", { "aria-label": `Delete the schedule ${schedule.name}`, onclick: act("", "DELETE") }))),
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

  /** Asks for a new schedule. A refusal of the server is shown in the dialog, which keeps what is typed. */
  _create() {
    const allowed = this._actions.query();
    const field = (name, label, props, hint) => {
      const input = h("input", { type: "text", name, autocomplete: "off", spellcheck: "false", ...props });
      return h("label", {}, h("span.label", {}, label), input, hint && h("span.field-hint", {}, hint));
    };
    const problem = h("p.is-error", { role: "alert", hidden: true });
    const create = h("button.primary", { type: "submit" }, "Create");
    const dialog = h("dialog.dialog.new-schedule", { "aria-labelledby": "new-schedule-title" });
    const form = h(
      "form.sign-in", {}, h("h2", { id: "new-schedule-title" }, "New schedule"),
      h(
        "div.fields", {},
        field("handler", "Handler", { required: true, placeholder: "report" }, "A handler of your workers"),
        field("name", "Name", { placeholder: "daily report" }, "Optional"),
        field("app_name", "App", { required: true, value: allowed.app_name ?? "", disabled: Boolean(allowed.app_name) }),
        field("user_id", "User", { required: true, value: allowed.user_id ?? "", disabled: Boolean(allowed.user_id) }),
        field("times", "Times", { required: true, placeholder: "0 8 * * MON-FRI" }, "A cron expression, or a number of seconds between runs"),
        field("timezone", "Time zone", { value: Intl.DateTimeFormat().resolvedOptions().timeZone }),
      ),
      field("input", "Input", { placeholder: '{"city": "Rome"}' }, "JSON, optional"),
      problem, h("div.buttons", {}, create, h("button", { type: "button", onclick: () => dialog.close() }, "Cancel")),
    );
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      create.disabled = true;
      try {
        await post("api/schedules", scheduleOf(form.elements));
      } catch (error) {
        create.disabled = false;
        problem.hidden = false;
        problem.textContent = error.message;
        return;
      }
      dialog.close();
      await this.load();
    });
    dialog.append(form);
    dialog.addEventListener("close", () => dialog.remove());
    document.body.append(dialog);
    dialog.showModal();
  }
}

/** The body of the request for what is typed. */
function scheduleOf(fields) {
  const typed = (name) => fields[name].value.trim();
  const body = { app_name: typed("app_name"), user_id: typed("user_id"), handler: typed("handler"), name: typed("name") || null };
  if (/^\d+(\.\d+)?$/.test(typed("times"))) body.every_seconds = Number(typed("times"));
  else Object.assign(body, { cron: typed("times"), timezone: typed("timezone") || "UTC" });
  if (!typed("input")) return body;
  try {
    return { ...body, input: JSON.parse(typed("input")) };
  } catch (error) {
    throw new Error(`The input is not JSON: ${error.message}`);
  }
}
