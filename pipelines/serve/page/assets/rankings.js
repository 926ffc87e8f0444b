// The raw ranking beside the rewritten one, and what moved between them.

import { clean, count, el, foreign } from "./dom.js";
import { open } from "./tool.js";

const SVG = "http://www.w3.org/2000/svg";

// Both sides' first places, each tool with where it stands on the other side.
export function moved(state) {
  const { raw, final, places } = state;
  const changed = Boolean(final?.rewrite?.lines.length) && !final.fallback;
  const before = new Map(raw.tools.map((tool, place) => [tool.id, place + 1]));
  const after = new Map((changed ? final : raw).tools.map((tool, place) => [tool.id, place + 1]));
  const left = raw.tools.slice(0, places).map((tool, at) => {
    const to = after.get(tool.id) ?? null;
    return { tool, place: at + 1, other: to, kind: to === null || to > places ? "out" : kind(at + 1 - to) };
  });
  const right = (changed ? final : raw).tools.slice(0, places).map((tool, at) => {
    const seen = before.get(tool.id) ?? tool.found_by.find(({ list }) => list === "raw")?.rank ?? null;
    return { tool, place: at + 1, other: seen, kind: seen === null || seen > places ? "in" : kind(seen - at - 1) };
  });
  return { changed, left, right, places };
}

function kind(by) {
  return by > 0 ? "up" : by < 0 ? "down" : "same";
}

export function summary({ changed, left, right, places }) {
  if (!right.length) return "Nothing was found.";
  if (!changed) return right.length === 1 ? "One tool." : `The first ${right.length} tools.`;
  const tally = (kind, side) => side.filter((each) => each.kind === kind).length;
  const [came, up, down, gone] = [tally("in", right), tally("up", right), tally("down", right), tally("out", left)];
  if (!came && !up && !down) return `Rewriting changes nothing in the first ${places}.`;
  const ways = [up && `${up} up`, down && `${down} down`].filter(Boolean).join(" and ");
  const did = [came && `brings in ${count(came, "tool", "tools")}`, ways && `moves ${ways}`].filter(Boolean);
  return `Rewriting ${did.join(", ")}${gone ? `; ${gone} ${gone === 1 ? "leaves" : "leave"} the first ${places}` : ""}.`;
}

function badge({ kind, place, other }, side) {
  const by = other === null ? 0 : Math.abs(place - other);
  const looks = {
    same: ["=", "same place"],
    up: side === "raw" ? [`▲ to ${other}`, `moves up to ${other}`] : [`▲ ${by}`, `up ${by}, from place ${other}`],
    down: side === "raw" ? [`▼ to ${other}`, `moves down to ${other}`] : [`▼ ${by}`, `down ${by}, from place ${other}`],
    in: other ? [`from ${other}`, `comes in from place ${other}`] : ["new", "not among the raw places"],
    out: other ? [`now ${other}`, `leaves, to place ${other}`] : ["gone", "leaves the first places"],
  }[kind];
  const [short, long] = looks;
  const words = [el("span", { "aria-hidden": "true" }, short), el("span", { class: "unseen" }, long)];
  return el("span", { class: `badge ${kind}`, title: long }, words);
}

function lists(tool) {
  if (!tool.found_by.length) return "named outright";
  return tool.found_by.map(({ list, rank }) => `${list} #${rank}`.replaceAll(" ", "\u00a0")).join(" · ");
}

function row(entry, side, changed) {
  const { tool, place } = entry;
  const told = side === "final" && changed ? el("p", { class: "lists" }, clean(lists(tool))) : null;
  const item = el(
    "li",
    { class: `tool ${changed ? entry.kind : ""}` },
    el("span", { class: "place" }, `${place}`),
    el(
      "div",
      { class: "what" },
      el("button", { type: "button", class: "open", onclick: () => open(tool.id, tool) }, foreign(tool.name)),
      tool.provider ? foreign(tool.provider, { class: "by" }) : null,
      tool.description ? el("p", { class: "about" }, foreign(tool.description)) : null,
      told,
    ),
    changed ? badge(entry, side) : null,
  );
  item.tool = tool.id;
  return item;
}

function column(title, note, entries, side, changed) {
  const body = entries.length
    ? el("ol", { class: "tools" }, entries.map((entry) => row(entry, side, changed)))
    : el("p", { class: "empty" }, "Nothing was found.");
  return el("section", { class: `column ${side}`, "aria-label": title }, el("h2", {}, title, el("small", {}, note)), body);
}

export function rankings(state) {
  const found = moved(state);
  if (!found.changed) {
    if (!state.waiting) return el("div", { class: "sides alone" }, column("Ranking", "", found.right, "raw", false));
    const raw = column("Raw", "as the request was typed", found.right, "raw", false);
    return el("div", { class: "sides" }, raw, el("div", { class: "gutter" }), awaited(found.right.length));
  }
  const gutter = el("div", { class: "gutter", "aria-hidden": "true" });
  const sides = el(
    "div",
    { class: "sides", "data-side": "final" },
    column("Raw", "as the request was typed", found.left, "raw", true),
    gutter,
    column("Rewritten", "joined with the rewriter’s lines", found.right, "final", true),
  );
  connect(sides, gutter);
  point(sides);
  return el("div", { class: "compared" }, el("p", { class: "summary" }, summary(found)), choice(sides), sides);
}

// In the place of a ranking that is still to come.
function awaited(places) {
  const rows = Array.from({ length: places }, () => el("li", { class: "tool" }));
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

// Lines from each tool to itself, drawn anew whenever the columns change their heights.
function connect(sides, gutter) {
  const draw = () => {
    const box = gutter.getBoundingClientRect();
    if (!box.width) return;
    const middle = (node) => {
      const place = node.querySelector(".place").getBoundingClientRect();
      return place.top + place.height / 2 - box.top;
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

// The tool under the pointer, or with the focus, is shown on both sides.
function point(sides) {
  const mark = (event) => {
    const wanted = event.target.closest?.(".tool")?.tool;
    for (const each of sides.querySelectorAll(".tool, path"))
      each.classList.toggle("lit", wanted !== undefined && each.tool === wanted);
  };
  for (const name of ["pointerover", "focusin"]) sides.addEventListener(name, mark);
  for (const name of ["pointerleave", "focusout"]) sides.addEventListener(name, () => mark({ target: sides }));
}
