// Attachments of messages: images, audio and video in place, any other file as a download.

import { request } from "./api.js";
import { h, icon, replace } from "./dom.js";
import { bytes } from "./format.js";
import { isCut } from "./value_tree.js";

const SCHEME = "attachment:";
const SHOWN = /^image\/(png|jpeg|gif|webp|avif)$/;
const PLAYED = /^(audio|video)\/[\w.+-]+$/;
const MOST_SHOWN_BYTES = 20_000_000;
const KEPT_MS = 60_000;

/** The media of a message's content: a list of { type, mimeType, name, size, url, data }. */
export function mediaOf(content) {
  if (Array.isArray(content.content)) return content.content.filter((part) => part?.source).map(fromAgui);
  if (!Array.isArray(content.parts)) return [];
  const given = content.adk?.custom_metadata?.agui_parts;
  const forms = Array.isArray(given) && given.length === content.parts.length ? given : [];
  return content.parts.map((part, place) => fromAdk(part, forms[place])).filter(Boolean);
}

function fromAgui({ type, source, metadata }) {
  const isData = source.type === "data";
  return { type, mimeType: source.mimeType, name: metadata?.name, size: metadata?.size, [isData ? "data" : "url"]: source.value };
}

function fromAdk(part, form) {
  const medium = part?.inline_data ?? part?.file_data;
  if (!medium) return null;
  const mimeType = medium.mime_type ?? "application/octet-stream";
  const data = typeof medium.data === "string" ? medium.data.replaceAll("-", "+").replaceAll("_", "/") : medium.data;
  return { type: form?.type ?? mimeType.split("/")[0], mimeType, name: form?.metadata?.name ?? medium.display_name, size: form?.metadata?.size, url: medium.file_uri, data };
}

/** The attachments of a message of a thread. */
export function attachmentViews(media, threadId) {
  return h("div.attachments", {}, media.map((medium) => view(medium, threadId)));
}

function view(medium, threadId) {
  const name = medium.name || `${medium.type ?? "file"}`;
  const label = [h("span.attachment-name", {}, name), typeof medium.size === "number" && h("span.muted", {}, bytes(medium.size))];
  if (typeof medium.url === "string" && medium.url.startsWith(SCHEME)) {
    const path = `api/sessions/${encodeURIComponent(threadId)}/attachments/${encodeURIComponent(medium.url.slice(SCHEME.length))}`;
    return stored(medium, path, name, label);
  }
  if (/^https?:\/\//.test(medium.url ?? "")) return h("a.attachment", { href: medium.url, target: "_blank", rel: "noopener noreferrer" }, icon("link"), label);
  if (typeof medium.data === "string" && SHOWN.test(medium.mimeType)) return h("figure.attachment", {}, h("img", { src: `data:${medium.mimeType};base64,${medium.data}`, alt: name }), h("figcaption", {}, label));
  return h("span.attachment", {}, icon("file"), label, (isCut(medium.data) || medium.data) && h("span.muted", {}, "in the message"));
}

/** A file of the thread's own: its bytes are fetched with the key of the page. */
function stored(medium, path, name, label) {
  const save = h("button.link", { type: "button", "aria-label": `Download ${name}`, title: "Download" }, icon("download"), label);
  save.addEventListener("click", async () => {
    const url = await objectUrl(path).catch((error) => failed(holder, error));
    if (!url) return;
    h("a", { href: url, download: name }).click();
    setTimeout(() => URL.revokeObjectURL(url), KEPT_MS);
  });
  const place = h("div.attachment-shown");
  const holder = h("figure.attachment", { "data-attachment": path.split("/").at(-1) }, place, h("figcaption", {}, save));
  const isSmall = (medium.size ?? 0) <= MOST_SHOWN_BYTES;
  if (SHOWN.test(medium.mimeType) && isSmall) showImage(place, path, name, holder);
  else if (PLAYED.test(medium.mimeType) && isSmall) {
    const play = h("button", { type: "button" }, icon("play"), "Play");
    play.addEventListener("click", () => showPlayer(place, path, medium.mimeType.split("/")[0], holder));
    place.append(play);
  }
  return holder;
}

async function showImage(place, path, name, holder) {
  try {
    const url = await objectUrl(path);
    const image = h("img", { src: url, alt: name });
    const release = () => URL.revokeObjectURL(url);
    image.addEventListener("load", release);
    image.addEventListener("error", () => (release(), image.remove()));
    replace(place, image);
  } catch (error) {
    failed(holder, error);
  }
}

async function showPlayer(place, path, kind, holder) {
  try {
    const player = h(kind, { src: await objectUrl(path), controls: true });
    replace(place, player);
    player.play().catch(() => {});
  } catch (error) {
    failed(holder, error);
  }
}

/** Frees the audio and video that players inside an element hold. Called before the element is emptied. */
export function releaseMedia(element) {
  for (const player of element.querySelectorAll("audio[src^='blob:'], video[src^='blob:']")) URL.revokeObjectURL(player.src);
}

async function objectUrl(path) {
  return URL.createObjectURL(await (await request(path)).blob());
}

function failed(holder, error) {
  holder.append(h("div.note", {}, icon("warn"), error.status === 404 ? "This attachment was deleted" : error.message));
}

/** The files of the next message: chosen, pasted or dropped, uploaded at once. */
export class PendingFiles {
  /** `actions`: upload(file) → the stored attachment, changed(), failed(error). */
  constructor(actions) {
    this._actions = actions;
    this._files = [];
    this.element = h("div.pending-files", { "aria-label": "Files of the next message", hidden: true });
  }

  get isUploading() {
    return this._files.some((one) => !one.part);
  }

  get parts() {
    return this._files.map((one) => one.part);
  }

  get isEmpty() {
    return !this._files.length;
  }

  add(files) {
    for (const file of files) this._add(file);
  }

  clear() {
    this._files = [];
    this._draw();
  }

  /** Puts files back that a failed message had. */
  restore(files) {
    this._files = files;
    this._draw();
  }

  take() {
    const taken = this._files;
    this.clear();
    return taken;
  }

  async _add(file) {
    const one = { name: file.name || "pasted", size: file.size, part: null };
    this._files.push(one);
    this._draw();
    try {
      one.part = (await this._actions.upload(file)).part;
    } catch (error) {
      this._files = this._files.filter((other) => other !== one);
      this._actions.failed(error);
    }
    this._draw();
  }

  _draw() {
    this.element.hidden = this.isEmpty;
    const remove = (one) => () => ((this._files = this._files.filter((other) => other !== one)), this._draw());
    replace(
      this.element,
      this._files.map((one) =>
        h("span.attachment", { "data-state": one.part ? "stored" : "uploading" }, one.part ? icon("file") : h("span.spinner", { "aria-hidden": "true" }), h("span.attachment-name", {}, one.name), h("span.muted", {}, bytes(one.size)), h("button.link", { type: "button", "aria-label": `Remove ${one.name}`, onclick: remove(one) }, icon("close"))),
      ),
    );
    this._actions.changed();
  }
}
