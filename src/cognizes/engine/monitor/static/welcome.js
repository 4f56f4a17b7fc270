// What a newcomer sees first.

import { h, icon, s } from "./dom.js";

export function welcome({ agents, start }) {
  return h(
    "div.welcome", {},
    s("svg.welcome-pulse", { viewBox: "0 0 600 120", "aria-hidden": "true" }, s("path", { d: "M0 70h180l14-30 18 60 22-90 24 84 14-24h80l12-18 16 30 10-12H600" })),
    h("h1", {}, "See the pulse of your agents"),
    h("p", {}, "Every event, every change of state, the moment it is stored. Pick a thread on the left, or begin one."),
    agents.length
      ? h("div.buttons", {}, agents.map(({ name }) => h("button.primary.is-large", { type: "button", onclick: () => start(name) }, icon("plus"), `Talk to ${name}`)))
      : h("pre.example", {}, "pip install 'cognizes-engine[adk]'   # a demo agent to talk to"),
    h(
      "ul.hints", {},
      hint("pulse", "Live", "Dots flash when a thread beats. The strip above shows the engine itself."),
      hint("clock", "Time travel", "Drag the slider under a timeline: state and messages as they were."),
      hint("search", "Ask why", "Click a value's clock to see who wrote it, when, in which run."),
    ),
    h("p.keys", {}, h("kbd", {}, "/"), " search  ", h("kbd", {}, "↑"), h("kbd", {}, "↓"), " walk through events  ", h("kbd", {}, "Esc"), " back to the present"),
  );
}

function hint(name, title, text) {
  return h("li", {}, icon(name), h("div", {}, h("strong", {}, title), h("span", {}, text)));
}
