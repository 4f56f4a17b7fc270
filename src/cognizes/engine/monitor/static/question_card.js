// A question to a person: what is asked, and while it is open a form with the answers that the agent expects.

import { expectedAnswer, typedAnswer } from "./answers.js";
import { h, icon, replace } from "./dom.js";
import { reasonOf } from "./format.js";
import { valueView } from "./value_tree.js";

const SHOWN_APART = ["toolName", "arguments", "value", "message", "response_schema", "responseSchema", "originalFunctionCall", "toolConfirmation"];

export class QuestionCard {
  /**
   * `question` is what `questionOf` returns. `actions`: give(question, payload) sends or keeps an answer and resolves to
   * the number of questions that have none yet; withdraw(question); may(permission) whether the caller has it.
   */
  constructor(question, actions) {
    this.question = question;
    this._actions = actions;
    this._form = h("form.answer");
    this._form.addEventListener("submit", (event) => event.preventDefault());
    this._problem = h("p.is-error", { role: "alert", hidden: true });
    this.element = h("div.question", { "data-question": question.id }, asked(question), this._form, this._problem);
    this._isOpen = null;
    this._isBusy = false;
  }

  /** Shows the form while the question is open. What is typed into an open form stays. */
  setOpen(isOpen) {
    if (this._isOpen === isOpen) return;
    this._isOpen = isOpen;
    this.element.classList.toggle("is-open", isOpen);
    this._problem.hidden = true;
    if (isOpen) this._ask();
    else replace(this._form, h("span.muted", {}, "No longer open"));
  }

  _ask() {
    const needed = this.question.kind === "approval" ? "admin" : "write";
    if (!this._actions.may(needed)) return replace(this._form, h("span.muted", {}, `An answer needs a key with the permission ${needed}.`));
    const { yes, no, texts, free } = expectedAnswer(this.question);
    const fields = texts.map((name) => h("input", { type: "text", "data-name": name, "aria-label": name, placeholder: `${name} (optional)`, autocomplete: "off" }));
    const typed = free && h("textarea", { rows: "2", "aria-label": free === "json" ? "Answer as JSON" : "Answer", placeholder: PLACEHOLDERS[free], spellcheck: free === "text" ? undefined : "false" });
    const added = () => Object.fromEntries(fields.filter((field) => field.value.trim()).map((field) => [field.dataset.name, field.value.trim()]));
    const decide = ([label, payload], kind) => h(kind, { type: "button", onclick: () => this._give(payload !== null && typeof payload === "object" ? { ...payload, ...added() } : payload, label) }, label);
    const send = () => {
      if (!typed.value.trim()) return typed.focus();
      try {
        return this._give(typedAnswer(typed.value.trim(), free), "Answered");
      } catch (error) {
        return this._fail(`The answer is not JSON: ${error.message}`);
      }
    };
    typed?.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      send();
    });
    replace(
      this._form, fields, typed,
      h("div.buttons", {}, yes && decide(yes, free ? "button" : "button.primary"), no && decide(no, "button"), free && h("button.primary", { type: "button", onclick: send }, icon("send"), "Send answer")),
    );
  }

  async _give(payload, label) {
    if (this._isBusy) return;
    this._isBusy = true;
    this._problem.hidden = true;
    for (const control of this._form.elements) control.disabled = true;
    try {
      const missing = await this._actions.give(this.question, payload);
      if (!this._isOpen) return;
      if (missing) this._showKept(label, missing);
      else replace(this._form, h("span.muted", {}, `${label}: sent`));
    } catch (error) {
      for (const control of this._form.elements) control.disabled = false;
      this._fail(error.message);
    } finally {
      this._isBusy = false;
    }
  }

  _showKept(label, missing) {
    const change = h("button.link", { type: "button" }, "Change");
    change.addEventListener("click", () => {
      this._actions.withdraw(this.question);
      this._ask();
    });
    replace(this._form, h("span.muted", {}, `${label}: sent together with the answer to ${missing === 1 ? "the other question" : `the other ${missing} questions`}`), change);
  }

  _fail(message) {
    this._problem.hidden = false;
    this._problem.textContent = message;
  }
}

const PLACEHOLDERS = { any: "A text, or JSON", text: "A text", json: "JSON" };

function asked(question) {
  const { toolName, arguments: values, value } = question.metadata;
  const others = Object.fromEntries(Object.entries(question.metadata).filter(([name, one]) => !SHOWN_APART.includes(name) && one !== null));
  const message = reasonOf(question.message);
  const head = toolName ? h("strong", {}, "May it call ", h("code", {}, toolName), "?") : h("strong", {}, message ?? "The agent asks for an answer");
  return [
    h("div.question-head", {}, icon("person"), head),
    toolName && message && message !== `May ${toolName} be called?` && h("p", {}, message),
    values !== undefined && values !== null && valueView(values, { open: 1 }),
    value !== undefined && (typeof value === "string" ? h("p", {}, value) : valueView(value, { open: 2 })),
    Object.keys(others).length > 0 && valueView(others, { open: 1 }),
  ];
}
