// Copying to the clipboard, also on a page over plain HTTP, where `navigator.clipboard` does not exist.

import { h, icon, replace } from "./dom.js";

const SHOWN_MS = 4000;

/** A button that copies the text of `text()`, and says whether it did. */
export function copyButton(label, text) {
  const button = h("button.link", { type: "button", "aria-label": label });
  const show = (name, word) => replace(button, icon(name), word);
  show("copy", "Copy");
  button.addEventListener("click", async (event) => {
    event.stopPropagation();
    const isCopied = await copy(text());
    button.classList.toggle("is-done", isCopied);
    button.classList.toggle("is-error", !isCopied);
    show(isCopied ? "check" : "warn", isCopied ? "Copied" : "Not copied");
    setTimeout(() => {
      button.classList.remove("is-done", "is-error");
      show("copy", "Copy");
    }, SHOWN_MS);
  });
  return button;
}

/** Copies a text; returns whether it is in the clipboard. */
async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return copySelection(text);
  }
}

function copySelection(text) {
  const focused = document.activeElement;
  const area = h("textarea.copied", { value: text, "aria-hidden": "true", tabindex: "-1" });
  document.body.append(area);
  area.select();
  const isCopied = document.execCommand("copy");
  area.remove();
  focused?.focus();
  return isCopied;
}
