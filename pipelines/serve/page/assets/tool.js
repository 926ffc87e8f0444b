// One tool, whole, in a dialog.

import { call } from "./api.js";
import { $, el, fill, foreign, trouble, unseen } from "./dom.js";

let about = null;

export function told(found) {
  about = found;
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
    el("p", { class: "by" }, labels.flatMap((label, place) => [place ? " · " : "", foreign(label)])),
    el("p", { class: "id" }, el("code", {}, foreign(tool.id))),
  );
}

function body(tool) {
  const schema = tool.schema === null ? "" : typeof tool.schema === "string" ? tool.schema : JSON.stringify(tool.schema, null, 2);
  const hidden = unseen(JSON.stringify([tool.name, tool.description, tool.parameters]).replace(/\\u([0-9a-f]{4})/gi, (_, code) => String.fromCharCode(parseInt(code, 16))));
  return [
    hidden ? el("p", { class: "trouble" }, `${hidden === 1 ? "One invisible character is" : `${hidden} invisible characters are`} shown as \ufffd. Honest tools rarely have any.`) : null,
    tool.description ? el("p", { class: "description" }, foreign(tool.description)) : el("p", { class: "hint" }, "It has no description, which makes it hard to find."),
    parameters(tool.parameters),
    schema ? el("details", {}, el("summary", {}, "JSON Schema of its arguments"), el("pre", { tabindex: "0" }, foreign(schema))) : null,
    about?.scopes.includes("write") ? remover(tool) : null,
  ];
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
  return el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Parameters" }, el("table", { class: "parameters" }, el("thead", {}, el("tr", {}, heads)), el("tbody", {}, rows)));
}

// Asked twice, in place: no one is surprised by a tool that went with one key.
function remover(tool) {
  const place = el("div", { class: "row remove" });
  const first = el("button", { type: "button", class: "quiet", onclick: () => sure() }, "Remove it from the catalogue");
  const sure = () => {
    const no = el("button", { type: "button", onclick: () => (fill(place, first), first.focus()) }, "Keep it");
    fill(place, el("span", {}, "Remove it for everybody?"), el("button", { type: "button", class: "danger", onclick: gone }, "Remove"), no);
    no.focus();
  };
  const gone = async () => {
    try {
      await call("DELETE", `/v1/tools/${encodeURIComponent(tool.id)}`);
    } catch (failure) {
      fill(place, trouble(failure));
      return;
    }
    $("tool-dialog").close();
    dispatchEvent(new CustomEvent("catalogue-changed"));
  };
  fill(place, first);
  return place;
}
