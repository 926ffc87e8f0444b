// Cards for one request: detection, rewrites, time by stage.

import { count, el, fill, foreign, milliseconds, percent } from "./dom.js";

const FALLBACKS = {
  starting: "The rewriter is not up yet.",
  cannot_start: "The rewriter cannot start here; the server’s log has the cause.",
  unavailable: "The rewriter cannot be reached.",
  circuit_open: "The rewriter failed several times and is paused for a moment.",
  busy: "Too many requests are waiting for the rewriter.",
  budget: "This key has used its share of the rewriter for this minute.",
  deadline: "The rewriter did not answer in time.",
  refused: "The model server rejected the request.",
  wrong_model: "Another model answered.",
  garbage: "The model server sent an invalid answer.",
  unparseable: "The model’s answer cannot be used.",
  too_long: "The request is too long for the model.",
  failed: "The gateway failed; see its log.",
};
const NOT_ASKED = {
  card: "The rewriter’s card advises against it on this catalogue. Press “Rewriter” to see what it would do.",
  detector: "The request needs no tool.",
  confident: "The first tool of the raw ranking scores high enough.",
  no_rewriter: "This server has no rewriter.",
  off: "It is left out.",
};
const NOT_RERANKED = {
  starting: "The reranker is not up yet.",
  unavailable: "The reranker cannot be reached.",
  deadline: "There was no time left for the reranker.",
  busy: "Too many requests are waiting for the reranker.",
  not_finite: "The reranker’s answer is no number.",
  failed: "The reranker failed; see the server’s log.",
};
const NO_WEIGHT = "Its card gives it no weight behind this retriever: on dev it gained nothing.";
const STAGES = [
  ["raw", "Raw search", "the request as typed"],
  ["detect", "Detector", ""],
  ["rewrite", "Rewriter", ""],
  ["lists", "Search of its lines", ""],
  ["rerank", "Reranker", ""],
  ["fuse", "Fusion", ""],
];

function card(title, kind, ...content) {
  return el("section", { class: `card ${kind}`, "aria-label": title }, el("h2", {}, title), ...content);
}

function verdictCard(title, kind, verdict, hint) {
  return card(title, kind, el("p", { class: "verdict" }, verdict), hint && el("p", { class: "hint" }, hint));
}

export function detection(state) {
  const found = (state.right ?? state.left).detection;
  if (!found && state.about?.detects) return verdictCard("Detection", "", "Not checked", "The detector is left out.");
  if (!found) return null;
  const hint = `Probability ${found.probability.toFixed(2)}; a tool is needed from ${found.threshold.toFixed(2)} on.`;
  return verdictCard("Detection", found.needs_tool ? "yes" : "no", found.needs_tool ? "Needs a tool" : "Needs no tool", hint);
}

// `explain` of the card reads the answer again: the number of votes comes later.
export function votes({ left, right, about, settings }) {
  const answer = right ?? left;
  if (!about?.votes || !answer.tools.length) return null;
  if (!settings[right ? "right" : "left"].includes("votes")) return verdictCard("Votes", "", "Not counted", "They are left out.");
  const made = card("Votes", "explained");
  const [verdict, hint] = [el("p", { class: "verdict" }), el("p", { class: "hint" })];
  made.append(verdict, hint);
  const explain = () => {
    const { voters, votes } = answer.parts ?? { voters: null, votes: {} };
    const needed = count(Object.keys(votes).length, "tool", "tools");
    fill(verdict, voters === null ? "Counted" : voters ? count(voters, "vote", "votes") : "No votes");
    if (voters === null) fill(hint, "Similar earlier requests count too.");
    else fill(hint, voters ? `Similar earlier requests, which needed ${needed}, count too.` : "No earlier request is similar enough.");
  };
  explain();
  return Object.assign(made, { explain });
}

export function reranking({ right, about, settings }) {
  if (!about?.models.some((model) => model.role === "reranker")) return null;
  const say = (kind, verdict, hint) => verdictCard("Reranker", kind, verdict, hint);
  if (!right) return card("Reranker", "", el("p", { class: "verdict waits" }, "Searching …"));
  const done = right.rerank;
  const reason = settings.right.includes("rerank") ? NO_WEIGHT : "It is left out.";
  if (!done) return say("", "Not asked", right.tools.length ? reason : "");
  if (done.fallback) return say("failed", NOT_RERANKED[done.fallback] ?? `The reranker failed (${done.fallback}).`, "The tools are in their first order.");
  const share = done.weight && done.weight < 1 ? `Its order counts ${percent(done.weight)}, the first one the rest.` : "";
  return say("yes", `Read the first ${done.tools} tools`, share);
}

export function rewrites(state) {
  const { right: final, about, settings } = state;
  const rewriter = !about || about.models.some((model) => model.role === "rewriter");
  const say = (kind, verdict, hint) => verdictCard("Rewrites", `wide ${kind}`, verdict, hint);
  if (!rewriter) return null;
  if (!settings.right.includes("rewrite")) return say("", "Not asked", about?.asks === false ? NOT_ASKED.card : NOT_ASKED.off);
  if (!final) return card("Rewrites", "wide", el("p", { class: "verdict waits" }, "Asking the rewriter …"));
  if (final.fallback) {
    const text = FALLBACKS[final.fallback.reason] ?? `The rewriter failed (${final.fallback.reason}).`;
    return say("failed", foreign(text), "The ranking below is that of the request as typed.");
  }
  const rewrite = final.rewrite;
  if (!rewrite) return say("", "Not asked", NOT_ASKED[final.not_asked]);
  if (!rewrite.lines.length) return say("", "Left unchanged", "The rewriter has nothing to add to this request.");
  const notes = [
    rewrite.status === "echo" && "only repeats the request",
    rewrite.cached && "from the cache",
    !rewrite.finished && "cut off; its last line is not used",
  ].filter(Boolean);
  const votes = (count) => (count ? el("small", {}, `${count} ${count === 1 ? "vote" : "votes"}`) : null);
  const lines = rewrite.lines.map((line, index) => el("li", {}, foreign(line), votes(rewrite.votes[index])));
  return card("Rewrites", "wide", el("ol", { class: "lines" }, lines), el("p", { class: "hint" }, notes.join("; ")));
}

export function times(state) {
  const answer = state.right ?? state.left;
  const spent = { ...answer.timings };
  const last = Math.max(0, spent.total - (spent.fuse ?? 0));
  if (spent.rerank) spent.fuse -= spent.rerank; // it is measured as a part of it
  const found = spent.detect ? spent.raw + spent.detect : 0; // the detector waits for the vector of the raw search
  const starts = { raw: 0, detect: spent.raw, rewrite: found, lists: found + (spent.rewrite ?? 0), rerank: last, fuse: last + (spent.rerank ?? 0) };
  const fused = answer.rewrite?.lines.length && !answer.fallback; // else the stage only builds the answer
  const rows = STAGES.filter(([stage]) => stage in spent).map(([stage, named, note]) => {
    const name = stage === "fuse" && !fused ? "Answer" : named;
    const bar = el("span", { class: `bar ${stage}` });
    bar.style.marginInlineStart = `${(100 * Math.min(starts[stage], spent.total)) / spent.total}%`;
    bar.style.inlineSize = `${Math.max(0.5, (100 * Math.min(spent[stage], spent.total - starts[stage])) / spent.total)}%`;
    const title = note && "rewrite" in spent ? `${name}, ${note}` : name;
    return row({}, el("th", { scope: "row", title }, name), bar, spent[stage]);
  });
  const total = row({ class: "total" }, el("th", { scope: "row" }, "Total"), null, spent.total);
  return card(
    "Time by stage",
    "time",
    el("table", {}, el("tbody", {}, rows, total)),
    el("p", { class: "hint" }, `${milliseconds(answer.took)} measured by this browser`),
  );
}

function row(properties, head, bar, spent) {
  const track = el("td", { class: "track", "aria-hidden": "true" }, bar);
  return el("tr", properties, head, track, el("td", {}, milliseconds(spent)));
}
