// The raw ranking beside the rewritten one, and the moves between them.

import { clean, count, el, foreign } from "./dom.js";
import { open } from "./tool.js";

const SVG = "http://www.w3.org/2000/svg";

// The top of both rankings, each tool with its rank on the other side.
export function moved(state) {
  const { raw, final, top } = state;
  const changed = Boolean(final?.rewrite?.lines.length) && !final.fallback;
  const before = new Map(raw.tools.map((tool, index) => [tool.id, index + 1]));
  const after = new Map((changed ? final : raw).tools.map((tool, index) => [tool.id, index + 1]));
  const left = raw.tools.slice(0, top).map((tool, index) => {
    const to = after.get(tool.id) ?? null;
    return { tool, rank: index + 1, other: to, kind: to === null || to > top ? "out" : kind(index + 1 - to) };
  });
  const right = (changed ? final : raw).tools.slice(0, top).map((tool, index) => {
    const seen = before.get(tool.id) ?? tool.found_by.find(({ list }) => list === "raw")?.rank ?? null;
    return { tool, rank: index + 1, other: seen, kind: seen === null || seen > top ? "in" : kind(seen - index - 1) };
  });
  return { changed, left, right, top, empty: explainEmpty(final ?? raw) };
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

export function summary({ changed, left, right, top, empty }) {
  if (!right.length) return empty;
  if (!changed) return right.length === 1 ? "One tool." : `The top ${right.length} tools.`;
  const tally = (kind, side) => side.filter((entry) => entry.kind === kind).length;
  const [came, up, down, gone] = [tally("in", right), tally("up", right), tally("down", right), tally("out", left)];
  if (!came && !up && !down) return `Rewriting changes nothing in the top ${top}.`;
  const ways = [up && `${up} up`, down && `${down} down`].filter(Boolean).join(" and ");
  const did = [came && `brings in ${count(came, "tool", "tools")}`, ways && `moves ${ways}`].filter(Boolean);
  return `Rewriting ${did.join(", ")}${gone ? `; ${gone} ${gone === 1 ? "leaves" : "leave"} the top ${top}` : ""}.`;
}

function badge({ kind, rank, other }, side) {
  const by = other === null ? 0 : Math.abs(rank - other);
  const looks = {
    same: ["=", "same rank"],
    up: side === "raw" ? [`▲ to ${other}`, `moves up to ${other}`] : [`▲ ${by}`, `up ${by}, from rank ${other}`],
    down: side === "raw" ? [`▼ to ${other}`, `moves down to ${other}`] : [`▼ ${by}`, `down ${by}, from rank ${other}`],
    in: other ? [`from ${other}`, `new in the top, from rank ${other}`] : ["new", "not in the raw ranking"],
    out: other ? [`now ${other}`, `drops out, to rank ${other}`] : ["gone", "drops out of the ranking"],
  }[kind];
  const [short, long] = looks;
  const words = [el("span", { "aria-hidden": "true" }, short), el("span", { class: "unseen" }, long)];
  return el("span", { class: `badge ${kind}`, title: long }, words);
}

function lists(tool) {
  if (!tool.found_by.length) return "named in the request";
  return tool.found_by.map(({ list, rank }) => `${list} #${rank}`.replaceAll(" ", "\u00a0")).join(" · ");
}

function row(entry, side, changed) {
  const { tool, rank } = entry;
  const ranks = side === "final" && changed ? el("p", { class: "lists" }, clean(lists(tool))) : null;
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
      ranks,
    ),
    changed ? badge(entry, side) : null,
  );
  item.tool = tool.id;
  return item;
}

function column(title, note, entries, side, { changed, empty }) {
  const body = entries.length
    ? el("ol", { class: "tools" }, entries.map((entry) => row(entry, side, changed)))
    : el("p", { class: "empty" }, empty);
  return el("section", { class: `column ${side}`, "aria-label": title }, el("h2", {}, title, el("small", {}, note)), body);
}

export function rankings(state) {
  const found = moved(state);
  if (!found.changed) {
    if (!state.waiting) return el("div", { class: "sides alone" }, column("Ranking", "", found.right, "raw", found));
    const raw = column("Raw", "the request as typed", found.right, "raw", found);
    return el("div", { class: "sides" }, raw, el("div", { class: "gutter" }), awaited(found.right.length));
  }
  const gutter = el("div", { class: "gutter", "aria-hidden": "true" });
  const sides = el(
    "div",
    { class: "sides", "data-side": "final" },
    column("Raw", "the request as typed", found.left, "raw", found),
    gutter,
    column("Rewritten", "fused with the rewriter’s lines", found.right, "final", found),
  );
  connect(sides, gutter);
  point(sides);
  return el("div", { class: "compared" }, el("p", { class: "summary" }, summary(found)), choice(sides), sides);
}

// A placeholder for a ranking that is still to come.
function awaited(top) {
  const rows = Array.from({ length: top }, () => el("li", { class: "tool" }));
  const list = el("ol", { class: "tools waiting", "aria-hidden": "true" }, rows);
  return el("section", { class: "column final", "aria-label": "Rewritten" }, el("h2", {}, "Rewritten"), list);
}

// On narrow screens one side at a time.
function choice(sides) {
  const radio = (value, label) => {
    const onchange = () => (sides.dataset.side = value);
    const input = el("input", { type: "radio", name: "side", value, checked: value === "final", onchange });
    return el("label", {}, input, el("span", {}, label));
  };
  const legend = el("legend", { class: "unseen" }, "Ranking");
  return el("fieldset", { class: "switch narrow" }, legend, radio("final", "Rewritten"), radio("raw", "Raw"));
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
    const right = new Map([...sides.querySelectorAll(".final .tool")].map((item) => [item.tool, item]));
    const svg = document.createElementNS(SVG, "svg");
    svg.setAttribute("width", box.width);
    svg.setAttribute("height", box.height);
    for (const item of sides.querySelectorAll(".raw .tool")) {
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
