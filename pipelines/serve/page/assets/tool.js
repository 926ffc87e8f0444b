// Dialog with all details of one tool.

import { call } from "./api.js";
import { $, el, fill, foreign, scrolling, trouble, unseen } from "./dom.js";

let about = null;

export function setAbout(value) {
  about = value;
}

export async function open(id, known = null) {
  const dialog = $("tool-dialog");
  fill($("tool"), head(known ?? { name: id, id }), el("p", { class: "waits" }, "Reading …"));
  if (!dialog.open) dialog.showModal();
  try {
    const tool = await call("GET", `/v1/tools/${encodeURIComponent(id)}`);
    fill($("tool"), head(tool), ...body(tool));
  } catch (failure) {
    fill($("tool"), head(known ?? { name: id, id }), trouble(failure));
  }
}

function head(tool) {
  const labels = [tool.provider, tool.category].filter(Boolean);
  return el(
    "header",
    {},
    el("h2", { id: "tool-name" }, foreign(tool.name)),
    el("button", { type: "button", class: "quiet round", "data-close": true, "aria-label": "Close" }, "✕"),
    el("p", { class: "by" }, labels.flatMap((label, index) => [index ? " · " : "", foreign(label)])),
    el("p", { class: "id" }, el("code", {}, foreign(tool.id))),
  );
}

function body(tool) {
  const texts = [tool.name, tool.description, ...tool.parameters.flatMap((one) => [one.name, one.type, one.description])];
  const hidden = texts.reduce((sum, text) => sum + unseen(text), 0);
  const subject = hidden === 1 ? "One invisible character is" : `${hidden} invisible characters are`;
  return [
    hidden && el("p", { class: "trouble" }, `${subject} shown as \ufffd. Honest tools rarely contain any.`),
    tool.description
      ? el("p", { class: "description" }, foreign(tool.description))
      : el("p", { class: "hint" }, "It has no description, so searches hardly find it."),
    parameters(tool.parameters),
    schema(tool.schema),
    about?.scopes.includes("call") && el("p", {}, el("a", { href: tryUrl(tool.id), "data-close": true }, "Try it under Servers")),
    about?.scopes.includes("write") && remover(tool),
  ];
}

function tryUrl(id) {
  return `#/calls?tool=${encodeURIComponent(id)}`;
}

function schema(value) {
  if (value === null) return null;
  const text = typeof value === "string" ? value : JSON.stringify(value, null, 2);
  return el("details", {}, el("summary", {}, "JSON Schema of its arguments"), el("pre", { tabindex: "0" }, foreign(text)));
}

function parameters(all) {
  if (!all.length) return el("p", { class: "hint" }, "No parameters.");
  const rows = all.map((one) =>
    el(
      "tr",
      {},
      el("th", { scope: "row" }, foreign(one.name), one.required ? el("small", {}, "required") : null),
      el("td", {}, foreign(one.type)),
      el("td", {}, foreign(one.description)),
    ),
  );
  const heads = ["Parameter", "Type", "Meaning"].map((name) => el("th", { scope: "col" }, name));
  const table = el("table", { class: "parameters" }, el("thead", {}, el("tr", {}, heads)), el("tbody", {}, rows));
  return scrolling("Parameters", table);
}

// Removal needs a second click, so that a slip deletes nothing.
function remover(tool) {
  const box = el("div", { class: "row remove" });
  const first = el("button", { type: "button", class: "quiet", onclick: () => sure() }, "Remove from the catalogue");
  const sure = () => {
    const no = el("button", { type: "button", onclick: () => (fill(box, first), first.focus()) }, "Keep");
    const yes = el("button", { type: "button", class: "danger", onclick: gone }, "Remove");
    fill(box, el("span", {}, "Remove it for all users?"), yes, no);
    no.focus();
  };
  const gone = async () => {
    try {
      await call("DELETE", `/v1/tools/${encodeURIComponent(tool.id)}`);
    } catch (failure) {
      fill(box, trouble(failure));
      return;
    }
    $("tool-dialog").close();
    dispatchEvent(new CustomEvent("catalogue-changed"));
  };
  fill(box, first);
  return box;
}
