// The start page: talk to an agent, or connect your own.

import { copyButton } from "./clipboard.js";
import { h, icon, s } from "./dom.js";

const MOST_LISTED = 6;
const CONNECT = `pip install 'cognizes-engine[adk]'
# my_package/agent.py defines root_agent
cognizes serve --agent my_package.agent:root_agent`;

/** `agents` is null while they are not known; `note` says why. */
export function welcome({ agents, note, start }) {
  return h(
    "div.welcome", {},
    s("svg.welcome-pulse", { viewBox: "0 0 600 120", "aria-hidden": "true" }, s("path", { d: "M0 70h180l14-30 18 60 22-90 24 84 14-24h80l12-18 16 30 10-12H600" })),
    h("h1", {}, "See what your agents do"),
    h("p", {}, "Every event and every change of state, as soon as it is stored. Choose a thread, or start one."),
    agents?.length
      ? choice(agents, start)
      : h("p", {}, agents !== null ? "This server hosts no agent." : note ?? "Reading the agents of this server…"),
    h("section.connect", {}, h("h2", {}, "Connect your own agent"), h("div.example", {}, h("pre", { tabindex: "0" }, CONNECT), copyButton("Copy the commands", () => CONNECT)), h("p", {}, "Google ADK, or with ", ["langgraph", "pydantic-ai", "openai-agents"].map((extra, place) => [place > 0 && (place === 2 ? " or " : ", "), h("code", {}, `[${extra}]`)]), " an agent of that framework; any source of AG-UI events works too.")),
    h(
      "ul.hints", {},
      hint("pulse", "Live", "A dot flashes when a thread has a new event. The strip above shows the load of the engine."),
      hint("clock", "Time travel", "Drag the slider under a timeline to see state and messages after any event."),
      hint("search", "History of a value", "Click the clock beside a value: author, time and run of each write."),
    ),
    h("p.keys", {}, h("kbd", {}, "/"), " search  ", h("kbd", {}, "↑"), h("kbd", {}, "↓"), " walk through events  ", h("kbd", {}, "Esc"), " back to the present"),
  );
}

/** One button for the first agent, a short list for the next ones, and a list that opens for the rest. */
function choice([first, ...others], start) {
  const listed = (some) => h("ul.agents", {}, some.map(({ name, description }) => h("li", {}, h("button", { type: "button", "aria-label": `Talk to ${name}`, title: description, onclick: () => start(name) }, h("strong", {}, name), description && h("span", {}, description)))));
  const rest = others.slice(MOST_LISTED);
  return h(
    "div.choice", {},
    h("button.primary.is-large", { type: "button", title: first.description, onclick: () => start(first.name) }, icon("plus"), `Talk to ${first.name}`),
    others.length > 0 && listed(others.slice(0, MOST_LISTED)),
    rest.length > 0 && h("details", {}, h("summary", {}, rest.length === 1 ? "1 more agent" : `${rest.length} more agents`), listed(rest)),
  );
}

function hint(name, title, text) {
  return h("li", {}, icon(name), h("div", {}, h("strong", {}, title), h("span", {}, text)));
}
