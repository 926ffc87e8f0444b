// A request in, and the answer twice: raw at once, rewritten when the model has answered.

import { call } from "./api.js";
import { $, el, fill, foreign, trouble } from "./dom.js";
import { detection, rewrites, times } from "./outcome.js";
import { moved, rankings, summary } from "./rankings.js";

const DEPTH = 50; // asked for, so that a tool that left the first places can be told where it went
let about = null;
let shown = "";
let asking = null;

export function begin() {
  $("ask-form").addEventListener("submit", (event) => {
    event.preventDefault();
    submit();
  });
  $("utterance").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      submit();
    }
  });
  for (const id of ["places", "rewrite"]) $(id).addEventListener("change", () => shown && submit());
  for (const id of ["provider", "category"]) $(id).addEventListener("focus", labels, { once: true });
}

export async function labels() {
  try {
    const found = await call("GET", "/v1/labels");
    for (const kind of ["providers", "categories"])
      fill($(kind), found[kind].map(({ label, tools }) => el("option", { value: label, label: `${label} (${tools})` })));
    return found;
  } catch {
    return null; // suggestions only: what is typed still counts
  }
}

export function told(found, failure) {
  about = found;
  const rewriter = about?.models.find((model) => model.role === "rewriter");
  $("rewrite-option").hidden = !rewriter;
  if (about) {
    $("utterance").maxLength = about.limits.characters;
    $("deadline").max = about.max_deadline_ms;
    $("deadline").placeholder = about.deadline_ms;
    for (const option of $("places").options) option.disabled = Number(option.value) > about.limits.k;
  }
  if (!shown) fill($("answer"), failure ? trouble(failure) : about ? welcome(rewriter) : []);
}

function welcome(rewriter) {
  const steps = rewriter
    ? [
        "The request is searched as it is.",
        "A small model rewrites it in the catalogue’s words, and each line is searched, too.",
        "Both are joined; you see what moved, and what it took.",
      ]
    : ["The request is searched as it is; this server has no rewriter.", "You see the tools in order, and what it took."];
  const inside = el("div", { class: "inside" });
  labels().then((found) => found && fill(inside, providers(found.providers)));
  return [el("ol", { class: "steps" }, steps.map((step) => el("li", {}, step))), inside];
}

function providers(all) {
  if (!all.length) return [];
  const links = all.slice(0, 12).map(({ label, tools }) => {
    const href = `#/catalogue?${new URLSearchParams({ provider: label })}`;
    return el("li", {}, el("a", { href }, foreign(label), " ", el("small", {}, `${tools}`)));
  });
  const rest = all.length > 12 ? el("li", {}, el("a", { href: "#/catalogue" }, "and more …")) : null;
  return [el("h2", {}, "What can be asked for here"), el("ul", { class: "chips" }, links, rest)];
}

export function show(parameters) {
  const text = parameters.get("q") ?? "";
  if (!text) {
    const fresh = Boolean(shown);
    if (fresh) {
      asking?.abort();
      shown = "";
      $("utterance").value = "";
      told(about);
    }
    if (matchMedia("(hover: hover)").matches && (fresh || document.activeElement === document.body)) $("utterance").focus();
    return;
  }
  for (const id of ["places", "rewrite", "provider", "category", "deadline"])
    if (parameters.has(id)) $(id).value = parameters.get(id);
  if (["provider", "category", "deadline"].some((id) => $(id).value)) $("more").open = true;
  if (!$("places").value) $("places").value = "10";
  if (!$("rewrite").value) $("rewrite").value = "auto";
  $("utterance").value = text;
  if (parameters.toString() !== shown) search(text, parameters.toString());
}

function submit() {
  const text = $("utterance").value.trim();
  if (!text) {
    $("utterance").focus();
    return;
  }
  const wanted = new URLSearchParams({ q: text, places: $("places").value });
  if ($("rewrite").value !== "auto") wanted.set("rewrite", $("rewrite").value);
  for (const id of ["provider", "category", "deadline"]) if ($(id).value.trim()) wanted.set(id, $(id).value.trim());
  const hash = `#/?${wanted}`;
  if (location.hash === hash) search(text, wanted.toString());
  else location.hash = hash;
}

function body(text, rewrite) {
  const typed = (id) => [$(id).value.trim()].filter(Boolean);
  const filters = { provider: typed("provider"), category: typed("category") };
  const places = Number($("places").value);
  const deadline = Math.round(Number($("deadline").value));
  return {
    utterance: text,
    k: Math.min(Math.max(DEPTH, places), about?.limits.k ?? DEPTH),
    rewrite,
    ...(filters.provider.length || filters.category.length ? { filters } : {}),
    ...(deadline > 0 && rewrite !== "off" ? { deadline_ms: deadline } : {}),
  };
}

async function search(text, wanted) {
  asking?.abort();
  const mine = (asking = new AbortController());
  shown = wanted;
  const mode = $("rewrite-option").hidden ? "off" : $("rewrite").value;
  const state = { text, places: Number($("places").value), mode, about, raw: null, final: null, waiting: mode !== "off" };
  $("ask-said").textContent = "Searching";
  $("answer").setAttribute("aria-busy", "true");
  try {
    const both = [ask(body(text, "off"), mine, (found) => (state.raw = found))];
    if (mode !== "off") both.push(ask(body(text, mode), mine, (found) => Object.assign(state, { final: found, waiting: false })));
    for (const each of both) each.then(() => mine === asking && state.raw && draw(state), () => {});
    await Promise.all(both);
    $("ask-said").textContent = summary(moved(state));
  } catch (failure) {
    if (failure.name === "AbortError" || mine !== asking) return;
    mine.abort();
    fill($("answer"), trouble(failure));
    $("ask-said").textContent = "";
  } finally {
    if (mine === asking) $("answer").removeAttribute("aria-busy");
  }
}

async function ask(body, controller, take) {
  const began = performance.now();
  const found = await call("POST", "/v1/search", body, controller.signal);
  take({ ...found.results[0], timings: found.timings_ms, fingerprints: found.fingerprints, took: performance.now() - began });
}

function draw(state) {
  const fingerprints = (state.final ?? state.raw).fingerprints;
  const prints = Object.entries(fingerprints).filter(([, print]) => print);
  fill(
    $("answer"),
    el("div", { class: "outcome" }, detection(state), rewrites(state), times(state)),
    rankings(state),
    el("p", { class: "prints" }, prints.flatMap(([what, print], place) => [place ? " · " : "", `${what} `, foreign(print)])),
  );
}
