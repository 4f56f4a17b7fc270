// The only way this page makes elements. Text is always a text node; there is no way to pass markup.

const SVG = "http://www.w3.org/2000/svg";

/** An element: `h("div.card", { onclick, title, "data-x": 1 }, "text", child, [more])`. */
export function h(selector, props, ...children) {
  const [tag, ...classes] = selector.split(".");
  return fill(document.createElement(tag || "div"), classes, props, children);
}

/** An SVG element. */
export function s(selector, props, ...children) {
  const [tag, ...classes] = selector.split(".");
  return fill(document.createElementNS(SVG, tag), classes, props, children);
}

function fill(element, classes, props, children) {
  if (classes.length) element.classList.add(...classes);
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "class") element.classList.add(...String(value).split(/\s+/).filter(Boolean));
    else if (name === "vars") for (const [key, item] of Object.entries(value)) element.style.setProperty(key, item);
    else if (typeof value === "function" && name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name.startsWith("on") || name === "style" || name === "srcdoc") throw new Error(`${name} is not allowed`);
    else if (name === "value") element.value = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  append(element, children);
  return element;
}

/** Appends children: elements, text, arrays of these; null and false are nothing. */
export function append(element, children) {
  for (const child of [children].flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return element;
}

/** Replaces what is inside. */
export function replace(element, ...children) {
  element.replaceChildren();
  return append(element, children);
}

/** Makes these elements the children, in this order. Those that are in their place are not touched: they keep the focus. */
export function arrange(element, children) {
  const kept = new Set(children);
  for (const child of [...element.childNodes]) if (!kept.has(child)) child.remove();
  let place = element.firstChild;
  for (const child of children) {
    if (child === place) place = place.nextSibling;
    else element.insertBefore(child, place);
  }
}

/** An icon of our own few, drawn with strokes. */
export function icon(name, label) {
  const drawing = s("svg.icon", { viewBox: "0 0 16 16", "aria-hidden": label ? undefined : "true", role: label && "img" });
  if (label) drawing.append(s("title", {}, label));
  for (const path of ICONS[name].split("|")) drawing.append(s("path", { d: path }));
  return drawing;
}

const ICONS = {
  pulse: "M1 8.5h3l1.6-4.5 2.8 8.5 2-6 1.1 2H15",
  search: "M7 12A5 5 0 1 0 7 2a5 5 0 0 0 0 10Z|M14 14l-3.4-3.4",
  sun: "M8 11a3 3 0 1 0 0-6 3 3 0 0 0 0 6Z|M8 1v1.5M8 13.5V15M1 8h1.5M13.5 8H15M3 3l1 1M12 12l1 1M3 13l1-1M12 4l1-1",
  moon: "M13.5 9.8A6 6 0 0 1 6.2 2.5a6 6 0 1 0 7.3 7.3Z",
  caret: "M6 4l4 4-4 4",
  back: "M10 3L5 8l5 5",
  close: "M4 4l8 8M12 4l-8 8",
  clock: "M8 14A6 6 0 1 0 8 2a6 6 0 0 0 0 12Z|M8 4.8V8l2.2 1.5",
  tool: "M9.8 3.2a3.2 3.2 0 0 0-4.2 4.2L2.5 10.500l3 3 3.100-3.100a3.200 3.200 0 0 0 4.200-4.200l-1.800 1.800-1.900-1.900Z",
  thought: "M8 2.500a4 4 0 0 0-2.500 7.100V11.500h5V9.600A4 4 0 0 0 8 2.500Z|M6.500 13.500h3",
  check: "M3 8.500l3.200 3.200L13 5",
  warn: "M8 2.500l6 10.500H2Z|M8 6.500v3M8 11.200v.3",
  pause: "M5.500 3.500v9M10.500 3.500v9",
  play: "M5 3.500v9l7-4.500Z",
  stop: "M4.500 4.500h7v7h-7Z",
  send: "M2.500 8h10M8.500 4l4.200 4-4.200 4",
  plus: "M8 3v10M3 8h10",
  copy: "M5.500 5.500h7v7h-7Z|M3.500 10.500v-7h7",
  download: "M8 2.500v7.500M5 7.500l3 3 3-3M3 13.500h10",
  eye: "M1.500 8S4 3.500 8 3.500 14.500 8 14.500 8 12 12.500 8 12.500 1.500 8 1.500 8Z|M8 9.800a1.800 1.800 0 1 0 0-3.600 1.800 1.800 0 0 0 0 3.600Z",
  branch: "M4.500 5.500v5|M4.500 5.500a1.500 1.500 0 1 0 0-3 1.500 1.500 0 0 0 0 3ZM4.500 13.500a1.500 1.500 0 1 0 0-3 1.500 1.500 0 0 0 0 3ZM11.500 5.500a1.500 1.500 0 1 0 0-3 1.500 1.500 0 0 0 0 3Z|M11.500 5.500c0 3-4 2.500-6.500 4.500",
  key: "M5.500 10.500a3 3 0 1 0 0-6 3 3 0 0 0 0 6Z|M8.500 7.500H14v2.500M11.500 7.500v2",
  panel: "M2.500 3h11v10h-11Z|M9.500 3v10",
  person: "M8 7.500a2.500 2.500 0 1 0 0-5 2.500 2.500 0 0 0 0 5Z|M3 13.500c.5-2.500 2.500-3.500 5-3.500s4.500 1 5 3.500",
  pencil: "M3 13l.7-3 6.800-6.800 2.300 2.300L6 12.300Z|M9.200 4.500l2.300 2.300",
  trash: "M3 4.500h10|M6.500 4.500v-2h3v2|M4.500 4.500l.7 9h5.600l.7-9|M7 7v4M9 7v4",
  file: "M4 2h5l3 3v9H4Z|M9 2v3h3",
  clip: "M12.500 7.500l-4.800 4.800a2.600 2.600 0 0 1-3.700-3.700l5-5a1.800 1.800 0 0 1 2.500 2.500l-4.800 4.800a.8.8 0 0 1-1.200-1.200l4.300-4.300",
  link: "M6.500 9.500l3-3|M7.500 4.500l1-1a2.800 2.800 0 0 1 4 4l-1 1M8.500 11.500l-1 1a2.800 2.800 0 0 1-4-4l1-1",
};
