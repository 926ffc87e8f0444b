// Search with two settings: the ranking of each is shown as soon as it is there, then the parts of the raw one.

import { call } from "./api.js";
import { $, el, fill, foreign, trouble } from "./dom.js";
import { hold, restore } from "./focus.js";
import { detection, reranking, rewrites, times, votes } from "./outcome.js";
import { moved, rankings, summary } from "./rankings.js";
import * as stages from "./stages.js";

const DEPTH = 50; // deep enough to show where a tool went that left the first ranks
let about = null;
let knowServer;
const serverKnown = new Promise((resolve) => (knowServer = resolve)); // whether it has a rewriter
let shown = "";
let asking = null;
let settings = null; // stages of both sides

export function init() {
  $("ask-form").addEventListener("submit", (event) => {
    event.preventDefault();
    submitTyped();
  });
  $("utterance").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      submitTyped();
    }
  });
  $("top").addEventListener("change", () => shown && submit());
  for (const id of ["provider", "category"]) $(id).addEventListener("focus", labels, { once: true });
}

export async function labels() {
  try {
    const found = await call("GET", "/v1/labels");
    for (const kind of ["providers", "categories"])
      fill($(kind), found[kind].map(({ label, tools }) => el("option", { value: label, label: `${label} (${tools})` })));
    return found;
  } catch {
    return null; // only suggestions are missing
  }
}

export function setAbout(value, failure) {
  about = value;
  if (value || failure) knowServer();
  if (about) {
    $("utterance").maxLength = about.limits.characters;
    $("deadline").max = about.max_deadline_ms;
    $("deadline").placeholder = about.deadline_ms;
    for (const option of $("top").options) option.disabled = Number(option.value) > about.limits.k;
  }
  if (!shown) fill($("answer"), failure ? trouble(failure) : about ? welcome() : []);
}

function welcome() {
  const has = stages.available(about);
  const steps = [
    has.includes("detect") && "A detector decides whether the request needs a tool at all.",
    "The request is searched as you typed it.",
    has.includes("votes") && "Similar earlier requests, whose tools are known, vote for these tools.",
    has.includes("rewrite") && "A small model rewrites it in the catalogue’s words; each line is searched as well, and the lists are fused.",
    has.includes("rerank") && "A reranker reads the first tools and puts them into a better order.",
    has.length ? "You see each tool’s way to its rank; a click leaves a stage out." : "You see the tools by rank, and the time by stage.",
  ].filter(Boolean);
  const inside = el("div", { class: "inside" });
  labels().then((found) => found && fill(inside, providers(found.providers)));
  return [examples(about.examples), el("ol", { class: "steps" }, steps.map((step) => el("li", {}, step))), inside];
}

function examples(all) {
  if (!all.length) return null;
  const link = (text) => el("li", {}, el("a", { href: `#/?${new URLSearchParams({ q: text })}` }, foreign(text)));
  return el("div", { class: "inside" }, el("h2", {}, "Examples"), el("ul", { class: "chips examples" }, all.map(link)));
}

function providers(all) {
  if (!all.length) return [];
  const links = all.slice(0, 12).map(({ label, tools }) => {
    const href = `#/catalogue?${new URLSearchParams({ provider: label })}`;
    return el("li", {}, el("a", { href }, foreign(label), " ", el("small", {}, `${tools}`)));
  });
  const rest = all.length > 12 ? el("li", {}, el("a", { href: "#/catalogue" }, "and more …")) : null;
  return [el("h2", {}, "Providers"), el("ul", { class: "chips" }, links, rest)];
}

export function show(parameters) {
  const text = parameters.get("q") ?? "";
  if (!text) {
    const fresh = Boolean(shown);
    if (fresh) {
      asking?.abort();
      shown = "";
      settings = null;
      $("utterance").value = "";
      setAbout(about);
    }
    if (matchMedia("(hover: hover)").matches && (fresh || document.activeElement === document.body)) $("utterance").focus();
    return;
  }
  for (const id of ["top", "provider", "category", "deadline"])
    if (parameters.has(id)) $(id).value = parameters.get(id);
  if (["provider", "category", "deadline"].some((id) => $(id).value)) $("more").open = true;
  if (!$("top").value) $("top").value = "10";
  $("utterance").value = text;
  if (parameters.toString() !== shown) search(text, parameters);
}

// Search for what is typed; `change` makes other settings of those before.
function submit(change = (now) => now) {
  const text = $("utterance").value.trim();
  if (!text) {
    $("utterance").focus();
    return;
  }
  const wanted = new URLSearchParams({ q: text, top: $("top").value });
  if (settings) stages.write(wanted, change(settings), about);
  for (const id of ["provider", "category", "deadline"]) if ($(id).value.trim()) wanted.set(id, $(id).value.trim());
  const hash = `#/?${wanted}`;
  if (location.hash === hash) search(text, wanted);
  else location.hash = hash;
}

// Search, and leave the box, so that single keys work.
function submitTyped() {
  submit();
  if ($("utterance").value.trim()) $("answer").focus({ preventScroll: true });
}

function body(text, side) {
  const typed = (id) => [$(id).value.trim()].filter(Boolean);
  const filters = { provider: typed("provider"), category: typed("category") };
  const top = Number($("top").value);
  const deadline = Math.round(Number($("deadline").value));
  return {
    utterance: text,
    k: Math.min(Math.max(DEPTH, top), about?.limits.k ?? DEPTH),
    ...stages.request(side, about),
    ...(filters.provider.length || filters.category.length ? { filters } : {}),
    ...(deadline > 0 && (side.includes("rewrite") || side.includes("rerank")) ? { deadline_ms: deadline } : {}),
  };
}

async function search(text, wanted) {
  asking?.abort();
  const mine = (asking = new AbortController());
  shown = wanted.toString();
  await serverKnown;
  if (mine !== asking) return;
  settings = stages.read(wanted, about);
  let explained = null; // parts of the raw ranking; asked for once a search has found tools, so that it delays none
  const explain = () => (explained ??= call("POST", "/v1/explain", { utterance: text }, mine.signal).catch(() => null));
  const state = { text, top: Number($("top").value), about, settings, left: null, right: null, change: submit };
  $("ask-said").textContent = "Searching";
  $("answer").setAttribute("aria-busy", "true");
  try {
    const both = ["right", "left"].filter((side) => settings[side]).map(async (side) => {
      const found = (state[side] = await ask(body(text, settings[side]), mine.signal));
      if (mine === asking) draw(state);
      if (found.tools.length) explain().then((parts) => parts && mine === asking && addParts(found, parts));
    });
    await Promise.all(both);
    $("ask-said").textContent = summary(moved(state));
  } catch (failure) {
    if (failure.name === "AbortError" || mine !== asking) return;
    mine.abort();
    hold(state);
    fill($("answer"), trouble(failure));
    restore(state);
    $("ask-said").textContent = "";
  } finally {
    if (mine === asking) $("answer").removeAttribute("aria-busy");
  }
}

async function ask(body, signal) {
  const began = performance.now();
  const found = await call("POST", "/v1/search", body, signal);
  const took = performance.now() - began;
  return { ...found.results[0], voteless: body.votes === "off", timings: found.timings_ms, fingerprints: found.fingerprints, took };
}

// Explain ranks by the parts too; in place, so that what has the focus or is open stays so.
function addParts(answer, parts) {
  answer.parts = parts;
  for (const part of $("answer").querySelectorAll(".why, .explained")) part.explain();
}

function draw(state) {
  const { fingerprints } = state.right ?? state.left;
  hold(state);
  const prints = Object.entries(fingerprints).filter(([, print]) => print);
  fill(
    $("answer"),
    el("div", { class: "outcome" }, el("div", { class: "stack" }, detection(state), votes(state), reranking(state)), rewrites(state), times(state)),
    rankings(state),
    el("p", { class: "prints" }, prints.flatMap(([what, print], index) => [index ? " · " : "", `${what} `, foreign(print)])),
  );
  restore(state);
}
