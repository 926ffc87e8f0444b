// The rankings of two settings side by side, and the moves between them.

import { clean, count, el, foreign } from "./dom.js";
import { chips, compare, note, title, titles } from "./stages.js";
import { open } from "./tool.js";
import { why } from "./why.js";

const SVG = "http://www.w3.org/2000/svg";

// What the stages made of a request; where it is the same on both sides, one ranking is enough.
function effect({ tools, rewrite, fallback, rerank }, top) {
  const order = tools.slice(0, top).map(({ id }) => id);
  return JSON.stringify([fallback ? [] : rewrite?.lines ?? [], Boolean(rerank && !rerank.fallback), order]);
}

// The top of both rankings, each tool with its rank on the other side.
export function moved({ left: before, right: after, settings, top }) {
  const changed = Boolean(before && after) && (settings.asked || effect(before, top) !== effect(after, top));
  const only = after ?? before;
  const ranks = (answer) => new Map(answer.tools.map((tool, index) => [tool.id, index + 1]));
  const [was, is] = [ranks(changed ? before : only), ranks(only)];
  const raw = settings.left && !["rewrite", "rerank"].some((stage) => settings.left.includes(stage));
  const same = raw && settings.left.includes("votes") === settings.right.includes("votes");
  const deep = (tool) => (same ? tool.found_by.find(({ list }) => list === "raw")?.rank : null);
  const left = (changed ? before : only).tools.slice(0, top).map((tool, index) => {
    const to = is.get(tool.id) ?? null;
    return { tool, rank: index + 1, other: to, kind: to === null || to > top ? "out" : kind(index + 1 - to) };
  });
  const right = only.tools.slice(0, top).map((tool, index) => {
    const seen = was.get(tool.id) ?? deep(tool) ?? null;
    return { tool, rank: index + 1, other: seen, kind: seen === null || seen > top ? "in" : kind(seen - index - 1) };
  });
  return { changed, left, right, top, subject: subject(settings), empty: explainEmpty(only) };
}

// What the right side does that the left one does not.
function subject({ left, right }) {
  const more = right.filter((stage) => !left?.includes(stage) && stage !== "detect");
  const words = { votes: "votes", rewrite: "rewriting", rerank: "reranking" };
  const fewer = left?.some((stage) => !right.includes(stage));
  if (!more.length || fewer) return { text: "The right setting", several: false };
  const text = more.map((stage) => words[stage]).join(" and ");
  return { text: text[0].toUpperCase() + text.slice(1), several: more.length > 1 || more[0] === "votes" };
}

// Why there is no tool, and what to do about it.
function explainEmpty({ detection, nothing_fits: reason }) {
  if (detection && !detection.needs_tool) return "This reads like a request that needs no tool. If it does, name the task.";
  if (!reason?.best) return "No tool found. Try other words, or fewer filters.";
  const nearest = `the nearest, ${clean(reason.best)}, has relevance ${reason.relevance.toFixed(2)}`;
  return `No tool fits: ${nearest}, below ${reason.min_score}. Name the task and its object, or add a tool that does it.`;
}

function kind(by) {
  return by > 0 ? "up" : by < 0 ? "down" : "same";
}

export function summary({ changed, left, right, top, subject: { text, several }, empty }) {
  if (!right.length) return empty;
  if (!changed) return right.length === 1 ? "One tool." : `The top ${right.length} tools.`;
  const tally = (kind, side) => side.filter((entry) => entry.kind === kind).length;
  const [came, up, down, gone] = [tally("in", right), tally("up", right), tally("down", right), tally("out", left)];
  if (!came && !up && !down && !gone) return `${text} ${several ? "change" : "changes"} nothing in the top ${top}.`;
  const ways = [up && `${up} up`, down && `${down} down`].filter(Boolean).join(" and ");
  const did = [came && `${several ? "bring" : "brings"} in ${count(came, "tool", "tools")}`, ways && `${several ? "move" : "moves"} ${ways}`].filter(Boolean);
  return `${text} ${did.join(", ")}${gone ? `; ${gone} ${gone === 1 ? "leaves" : "leave"} the top ${top}` : ""}.`;
}

function badge({ kind, rank, other }, side) {
  const by = other === null ? 0 : Math.abs(rank - other);
  const looks = {
    same: ["=", "same rank"],
    up: side === "left" ? [`▲ to ${other}`, `moves up to ${other}`] : [`▲ ${by}`, `up ${by}, from rank ${other}`],
    down: side === "left" ? [`▼ to ${other}`, `moves down to ${other}`] : [`▼ ${by}`, `down ${by}, from rank ${other}`],
    in: other ? [`from ${other}`, `new in the top, from rank ${other}`] : ["new", "not in the left ranking"],
    out: other ? [`now ${other}`, `drops out, to rank ${other}`] : ["gone", "drops out of the ranking"],
  }[kind];
  const [short, long] = looks;
  const words = [el("span", { "aria-hidden": "true" }, short), el("span", { class: "unseen" }, long)];
  return el("span", { class: `badge ${kind}`, title: long }, words);
}

function row(entry, side, changed, answer) {
  const { tool, rank } = entry;
  const item = el(
    "li",
    { class: `tool ${changed ? entry.kind : ""}` },
    el("span", { class: "rank" }, `${rank}`),
    el(
      "div",
      { class: "what" },
      el("button", { type: "button", class: "open", onclick: () => open(tool.id, tool) }, foreign(tool.name)),
      tool.provider ? foreign(tool.provider, { class: "by" }) : null,
      tool.description ? el("p", { class: "about" }, foreign(tool.description)) : null,
      why(tool, rank, answer),
    ),
    changed ? badge(entry, side) : null,
  );
  item.tool = tool.id;
  return item;
}

function titleOf(side, { settings, about }) {
  if (!settings.left) return title(settings.right, about);
  const [left, right] = titles(settings, about);
  return side === "left" ? left : right;
}

function column(side, state, { changed, empty, ...found }, alone = false) {
  const { settings, about, change } = state;
  const [name, words] = alone ? ["Ranking", ""] : [titleOf(side, state), note(settings[side], about)];
  const answer = state[side] ?? state.right ?? state.left;
  const body = found[side].length
    ? el("ol", { class: "tools" }, found[side].map((entry) => row(entry, side, changed, answer)))
    : el("p", { class: "empty" }, empty);
  const head = el("div", { class: "heading" }, el("h2", {}, name, el("small", {}, words)), chips(side, settings, about, change));
  return el("section", { class: `column ${side}`, "aria-label": name }, head, body);
}

export function rankings(state) {
  const found = moved(state);
  const button = compare({ ...state.settings, left: found.changed ? state.settings.left : null }, state.about, state.change);
  if (!found.changed) {
    const single = el("div", { class: "sides alone" }, column("right", state, found, true), button);
    if (state.right || !state.left) return single;
    return el("div", { class: "sides" }, column("left", state, found), el("div", { class: "gutter" }), awaited(state, found.right.length));
  }
  const gutter = el("div", { class: "gutter", "aria-hidden": "true" });
  const sides = el("div", { class: "sides", "data-side": "right" }, column("left", state, found), gutter, column("right", state, found));
  connect(sides, gutter);
  point(sides);
  return el("div", { class: "compared" }, el("p", { class: "summary" }, summary(found)), choice(sides, state), sides, button);
}

// A placeholder for a ranking that is still to come.
function awaited(state, top) {
  const rows = Array.from({ length: top }, () => el("li", { class: "tool" }));
  const list = el("ol", { class: "tools waiting", "aria-hidden": "true" }, rows);
  const name = titleOf("right", state);
  return el("section", { class: "column right", "aria-label": name }, el("h2", {}, name), list);
}

// On narrow screens one side at a time.
function choice(sides, state) {
  const radio = (value, label) => {
    const onchange = () => (sides.dataset.side = value);
    const input = el("input", { type: "radio", name: "side", value, checked: value === "right", onchange });
    return el("label", {}, input, el("span", {}, label));
  };
  const legend = el("legend", { class: "unseen" }, "Ranking");
  const [left, right] = titles(state.settings, state.about);
  return el("fieldset", { class: "switch narrow" }, legend, radio("right", right), radio("left", left));
}

// Lines between the two ranks of each tool, redrawn when the columns change their heights.
function connect(sides, gutter) {
  const draw = () => {
    const box = gutter.getBoundingClientRect();
    if (!box.width) return;
    const middle = (node) => {
      const rect = node.querySelector(".rank").getBoundingClientRect();
      return rect.top + rect.height / 2 - box.top;
    };
    const right = new Map([...sides.querySelectorAll(".right .tool")].map((item) => [item.tool, item]));
    const svg = document.createElementNS(SVG, "svg");
    svg.setAttribute("width", box.width);
    svg.setAttribute("height", box.height);
    for (const item of sides.querySelectorAll(".left .tool")) {
      const other = right.get(item.tool);
      if (!other) continue;
      const [from, to, half] = [middle(item), middle(other), box.width / 2];
      const path = document.createElementNS(SVG, "path");
      path.setAttribute("d", `M0 ${from}C${half} ${from} ${half} ${to} ${box.width} ${to}`);
      path.setAttribute("class", ["up", "down", "same"].find((kind) => item.classList.contains(kind)) ?? "");
      path.tool = item.tool;
      svg.append(path);
    }
    gutter.replaceChildren(svg);
  };
  new ResizeObserver(draw).observe(sides);
}

// Highlight the tool under the pointer, or with the focus, on both sides.
function point(sides) {
  const mark = (event) => {
    const wanted = event.target.closest?.(".tool")?.tool;
    for (const node of sides.querySelectorAll(".tool, path"))
      node.classList.toggle("lit", wanted !== undefined && node.tool === wanted);
  };
  for (const name of ["pointerover", "focusin"]) sides.addEventListener(name, mark);
  for (const name of ["pointerleave", "focusout"]) sides.addEventListener(name, () => mark({ target: sides }));
}
