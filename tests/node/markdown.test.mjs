// How the Monitor reads Markdown, with a document of its own. Run by `node --test`.

import assert from "node:assert/strict";
import { test } from "node:test";

class Node {
  constructor(tag, text = null) {
    Object.assign(this, { tagName: tag.toUpperCase(), text, childNodes: [], attributes: {}, classes: [], style: { setProperty() {} } });
    this.classList = { add: (...names) => this.classes.push(...names) };
  }
  append(...children) {
    this.childNodes.push(...children);
  }
  replaceChildren() {
    this.childNodes = [];
  }
  setAttribute(name, value) {
    this.attributes[name] = value;
  }
  addEventListener() {}
  get textContent() {
    return this.text ?? this.childNodes.map((child) => child.textContent).join("");
  }
  find(tag) {
    return this.childNodes.flatMap((child) => [...(child.tagName === tag.toUpperCase() ? [child] : []), ...child.find(tag)]);
  }
}
globalThis.Node = Node;
globalThis.document = {
  createElement: (tag) => new Node(tag),
  createElementNS: (_, tag) => new Node(tag),
  createTextNode: (text) => new Node("#text", text),
};

const { markdown } = await import("../../src/cognizes/engine/monitor/static/markdown.js");

test("a fence with an info string is code, and its closing fence closes it", () => {
  const shown = markdown("```js title=x\nlet a;\n```\n\nafter\n\n~~~ c++ `x`\nint a;\n~~~");
  assert.deepEqual(shown.find("code").map((code) => code.textContent), ["let a;", "int a;"]);
  assert.deepEqual(shown.find("p").map((line) => line.textContent), ["after"]);
});

test("a heading loses the number signs that close it", () => {
  const texts = ["# one ##", "## C#", "# #", "#no"].map((line) => markdown(line).find("p")[0].textContent);
  assert.deepEqual(texts, ["one", "C#", "", "#no"]);
});

test("spans of code, emphasis and links", () => {
  const shown = markdown("``x ` y``, *em*, [the guide](https://example.com/a), https://example.com/b.");
  assert.deepEqual(shown.find("code").map((code) => code.textContent), ["x ` y"]);
  assert.deepEqual(shown.find("em").map((one) => one.textContent), ["em"]);
  assert.deepEqual(shown.find("a").map((link) => link.attributes.href), ["https://example.com/a", "https://example.com/b"]);
  assert.deepEqual(markdown("**use `ab` now**").find("strong").map((one) => one.textContent), ["use ab now"]);
});

test("a table needs a rule below its head", () => {
  assert.deepEqual(markdown("a | b\n--- | :-:\n1 | 2").find("td").map((cell) => cell.textContent), ["1", "2"]);
  assert.equal(markdown("a | b\nc | d").find("td").length, 0);
});

// Each of these takes minutes with an expression that backtracks, and milliseconds without.
const HOSTILE = {
  "a heading with spaces": `# a${" ".repeat(20_000)}b`,
  "open brackets": "[".repeat(50_000),
  "open links": "[a](http://x".repeat(4_000),
  "runs of backticks": Array.from({ length: 200 }, (_, length) => "`".repeat(length)).join(" "),
  "a table rule of spaces": `a | b\n${" ".repeat(50_000)}x`,
  "an item of spaces": `- ${" ".repeat(50_000)}\u2028x`,
  "stars and underscores": "*_".repeat(20_000),
};
for (const [name, text] of Object.entries(HOSTILE)) {
  test(`${name} are read in linear time`, { timeout: 20_000 }, () => {
    assert.ok(markdown(text).textContent.length > 0);
  });
}
