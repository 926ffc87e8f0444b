// Create elements. Strings always become text, never markup; trusted types enforce it.

// Control characters, lone surrogates, invisible characters, and those that change the writing direction.
const UNSEEN =
  /[\0-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\u{e0000}-\u{e007f}]|\p{Cs}/gu;

export const $ = (id) => document.getElementById(id);

export function clean(text) {
  return String(text).replace(UNSEEN, "\ufffd");
}

export function unseen(text) {
  return (String(text).match(UNSEEN) ?? []).length;
}

export function el(name, properties = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else node.setAttribute(key, value === true ? "" : clean(value));
  }
  node.append(...children.flat(2).filter(Boolean));
  return node;
}

// Untrusted text: cleaned, with its writing direction isolated.
export function foreign(text, properties = {}) {
  return el("bdi", properties, clean(text));
}

export function fill(node, ...children) {
  node.replaceChildren(...children.flat().filter(Boolean));
}

export function count(number, one, many) {
  return `${number.toLocaleString("en")} ${number === 1 ? one : many}`;
}

export function percent(share) {
  return `${Math.round(100 * share)} %`;
}

export function milliseconds(value) {
  if (value >= 1000) return `${(value / 1000).toFixed(2)} s`;
  return `${value >= 100 ? value.toFixed(0) : value >= 10 ? value.toFixed(1) : value.toFixed(2)} ms`;
}

// A wide table that scrolls inside the page.
export function scrolling(label, table) {
  return el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label }, table);
}

// An error message, with a button to enter a key if that helps.
export function trouble(failure) {
  const keyless = failure.status === 401 || failure.status === 403;
  return el(
    "div",
    { class: "trouble", role: "alert" },
    el("p", {}, foreign(failure.message)),
    keyless && enterKey(),
  );
}

function enterKey() {
  return el("button", { type: "button", onclick: () => $("key-button").click() }, "Enter a key");
}

// What a caller needs a key for; no error, because nothing was refused.
export function keyNotice(about, scope, purpose) {
  const text = about ? `You need a key with the scope “${scope}” to ${purpose}.` : `You need a key to ${purpose}.`;
  return el("div", { class: "notice" }, el("p", {}, text), enterKey());
}
