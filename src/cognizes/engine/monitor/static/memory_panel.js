// Memory: long-term facts and episodes of this thread's app and user, and a recall with the scores of its hits.

import { get, post } from "./api.js";
import { h, icon, replace } from "./dom.js";
import { ago, exact, isSecret, shortId } from "./format.js";
import { text as longText, valueView } from "./value_tree.js";

const MOST_TEXT = 1000;

export class MemoryPanel {
  /** `actions`: failed(error), openRun(id). */
  constructor(root, actions) {
    this._actions = actions;
    this._query = h("input", { type: "search", id: "recall-query", placeholder: "What would be recalled for…", "aria-label": "Recall", autocomplete: "off" });
    const form = h("form.recall", {}, this._query, h("button.primary", { type: "submit" }, "Recall"));
    form.addEventListener("submit", (event) => (event.preventDefault(), this._recall()));
    this._hits = h("div.hits", { "aria-live": "polite" });
    this._whose = h("p.panel-note");
    this._facts = h("div", { id: "facts" });
    this._episodes = h("div", { id: "episodes" });
    root.append(
      form, this._whose, this._hits,
      h("section.block", {}, h("h3", {}, "Long-term"), this._facts),
      h("section.block", {}, h("h3", {}, "Episodes"), this._episodes),
    );
  }

  open(threadId, summary) {
    this._summary = summary;
    this._shown = false;
    replace(this._hits);
    replace(this._facts);
    replace(this._episodes);
    replace(this._whose, "Memory of ", h("code", {}, summary.user_id), " in ", h("code", {}, summary.app_name));
  }

  /** Reads the memories each time the tab is chosen. */
  async show() {
    const summary = this._summary;
    if (!summary) return;
    const whose = { app_name: summary.app_name, user_id: summary.user_id, limit: 100 };
    const list = async (path, place, draw, nothing) => {
      try {
        const { entries } = await get(path, whose);
        if (summary !== this._summary) return;
        replace(place, entries.length ? entries.map(draw) : h("p.empty-line", {}, nothing));
      } catch (error) {
        if (summary === this._summary) replace(place, h("p.empty-line.is-error", {}, error.message));
      }
    };
    await Promise.all([
      list("memory/long-term", this._facts, (fact) => this._fact(fact), "No facts are kept for this user yet."),
      list("memory/episodic", this._episodes, (episode) => this._episode(episode), "No episodes yet; one is written when a run ends."),
    ]);
  }

  async _recall() {
    const summary = this._summary;
    const query = this._query.value.trim();
    if (!query || !summary) return;
    replace(this._hits, h("p.empty-line", {}, "Recalling…"));
    try {
      const { hits } = await post("memory/recall", { query, app_name: summary.app_name, user_id: summary.user_id, k: 8 });
      if (summary !== this._summary) return;
      const best = Math.max(...hits.map((hit) => hit.score), 1e-9);
      replace(this._hits, hits.length ? hits.map((hit) => this._hit(hit, best)) : h("p.empty-line", {}, "No memory matches."));
    } catch (error) {
      replace(this._hits);
      this._actions.failed(error);
    }
  }

  _hit(hit, best) {
    const scores = [["score", hit.score], ...Object.entries(hit.scores)];
    return h(
      "article.entry.hit", { "data-kind": hit.kind },
      h("div.entry-text", {}, longText(hit.text, { quote: false, shown: MOST_TEXT })),
      h("div.entry-meta", {}, h("span.tag", {}, hit.kind), hit.namespace && h("span", {}, hit.namespace), hit.author && h("span", {}, hit.author), h("time", { title: exact(hit.created_at) }, ago(hit.created_at))),
      h(
        "details.why", {}, h("summary", {}, `score ${hit.score.toFixed(3)}`),
        scores.map(([name, value]) => h("div.score", { "data-score": name }, h("span", {}, name), h("span.score-bar", {}, h("span", { vars: { "--share": `${Math.max(0, Math.min(100, (value / best) * 100))}%` } })), h("span", {}, Number(value).toFixed(3)))),
      ),
    );
  }

  _fact(fact) {
    return h(
      "article.entry", { "data-key": fact.key },
      h("div.state-row", {}, h("span.k", {}, fact.key), h("div.state-value", {}, valueView(fact.value, { name: isSecret(fact.key) ? fact.key : undefined })), h("span")),
      h("div.entry-meta", {}, fact.namespace && h("span.tag", {}, fact.namespace), h("span", {}, fact.agent_id), h("time", { title: exact(fact.updated_at) }, ago(fact.updated_at))),
    );
  }

  _episode(episode) {
    return h(
      "article.entry", {},
      h("div.entry-text", {}, longText(episode.summary, { quote: false, shown: MOST_TEXT })),
      Object.keys(episode.payload ?? {}).length ? valueView(episode.payload) : null,
      h(
        "div.entry-meta", {}, h("span", {}, episode.agent_id), h("time", { title: exact(episode.created_at) }, ago(episode.created_at)),
        episode.run_id && (episode.session_id === this._summary.session_id ? h("button.link", { type: "button", onclick: () => this._actions.openRun(episode.run_id) }, `run ${shortId(episode.run_id)}`) : h("span", {}, `run ${shortId(episode.run_id)}`)),
      ),
    );
  }
}
