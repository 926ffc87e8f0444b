// What became of a request on its way: detection, rewrites, seconds by stage.

import { el, foreign, milliseconds } from "./dom.js";

const FALLBACKS = {
  starting: "The rewriter is not up yet.",
  unavailable: "The rewriter cannot be reached.",
  circuit_open: "The rewriter failed several times and is left alone for a moment.",
  busy: "Too many requests wait for the rewriter.",
  deadline: "The rewriter did not answer in time.",
  refused: "The model server does not take the request.",
  wrong_model: "Another model than the one asked has answered.",
  garbage: "What the model server sent is no answer.",
  unparseable: "The model wrote nothing that could be used.",
  too_long: "The request does not fit into the model.",
  failed: "The gateway failed; its log tells why.",
};
const STAGES = [
  ["raw", "Raw search", "as the request was typed"],
  ["rewrite", "Rewriter", "at the same time"],
  ["lists", "Its lines, searched", ""],
  ["fuse", "Joined", ""],
];

function card(title, kind, ...content) {
  return el("section", { class: `card ${kind}`, "aria-label": title }, el("h2", {}, title), ...content);
}

export function detection(state) {
  const found = (state.final ?? state.raw).detection;
  if (!found) return card("Detection", "", el("p", { class: "verdict" }, "Not checked"), el("p", { class: "hint" }, "The index has no detector, so every request is searched."));
  const said = found.needs_tool ? "Needs a tool" : "Needs no tool";
  return card("Detection", found.needs_tool ? "yes" : "no", el("p", { class: "verdict" }, said));
}

export function rewrites(state) {
  if (state.waiting) return card("Rewrites", "wide", el("p", { class: "verdict waits" }, "Asking the rewriter …"));
  const { final, about } = state;
  if (!final) {
    const none = !about || about.models.length === 1;
    return card("Rewrites", "wide", el("p", { class: "verdict" }, none ? "No rewriter here" : "Not asked"), el("p", { class: "hint" }, none ? "The ranking is that of the request as it was typed." : "You chose to leave it out."));
  }
  if (final.fallback) {
    const said = FALLBACKS[final.fallback.reason] ?? `The rewriter gave nothing (${final.fallback.reason}).`;
    return card("Rewrites", "wide failed", el("p", { class: "verdict" }, foreign(said)), el("p", { class: "hint" }, "The ranking below is that of the request as it was typed."));
  }
  const rewrite = final.rewrite;
  if (!rewrite) return card("Rewrites", "wide", el("p", { class: "verdict" }, "Not asked"), el("p", { class: "hint" }, "The rewriter’s card advises against it on this catalogue. Choose “always” to see what it would do."));
  if (!rewrite.lines.length) return card("Rewrites", "wide", el("p", { class: "verdict" }, "Left as it is"), el("p", { class: "hint" }, "The rewriter has nothing to add to this request."));
  const notes = [rewrite.cached && "remembered from before", !rewrite.finished && "cut short; its last line is not used"].filter(Boolean);
  return card(
    "Rewrites",
    "wide",
    el("ol", { class: "lines" }, rewrite.lines.map((line) => el("li", {}, foreign(line)))),
    notes.length ? el("p", { class: "hint" }, notes.join("; ")) : null,
  );
}

export function times(state) {
  const answer = state.final ?? state.raw;
  const spent = answer.timings;
  const starts = { raw: 0, rewrite: 0, lists: spent.rewrite ?? 0, fuse: Math.max(0, spent.total - (spent.fuse ?? 0)) };
  const rows = STAGES.filter(([stage]) => stage in spent).map(([stage, name, note]) => {
    const bar = el("span", { class: `bar ${stage}` });
    bar.style.marginInlineStart = `${(100 * Math.min(starts[stage], spent.total)) / spent.total}%`;
    bar.style.inlineSize = `${Math.max(0.5, (100 * Math.min(spent[stage], spent.total - starts[stage])) / spent.total)}%`;
    const title = note && "rewrite" in spent ? `${name}, ${note}` : name;
    return el("tr", {}, el("th", { scope: "row", title }, name), el("td", { class: "track", "aria-hidden": "true" }, bar), el("td", {}, milliseconds(spent[stage])));
  });
  const total = el("tr", { class: "total" }, el("th", { scope: "row" }, "Altogether"), el("td", { class: "track" }), el("td", {}, milliseconds(spent.total)));
  return card(
    "Time by stage",
    "time",
    el("table", {}, el("tbody", {}, rows, total)),
    el("p", { class: "hint" }, `${milliseconds(answer.took)} as this browser saw it`),
  );
}
