// Search: the raw ranking at once, the rewritten one when the model has answered.

import { call } from "./api.js";
import { $, el, fill, foreign, trouble } from "./dom.js";
import { detection, rewrites, times } from "./outcome.js";
import { moved, rankings, summary } from "./rankings.js";

const DEPTH = 50; // deep enough to show where a tool went that left the first ranks
let about = null;
let knowServer;
const serverKnown = new Promise((resolve) => (knowServer = resolve)); // whether it has a rewriter
let shown = "";
let asking = null;

export function init() {
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
  for (const id of ["top", "rewrite"]) $(id).addEventListener("change", () => shown && submit());
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
  const rewriter = about?.models.find((model) => model.role === "rewriter");
  $("rewrite-option").hidden = !rewriter;
  if (about) {
    $("utterance").maxLength = about.limits.characters;
    $("deadline").max = about.max_deadline_ms;
    $("deadline").placeholder = about.deadline_ms;
    for (const option of $("top").options) option.disabled = Number(option.value) > about.limits.k;
  }
  if (!shown) fill($("answer"), failure ? trouble(failure) : about ? welcome(rewriter) : []);
}

function welcome(rewriter) {
  const steps = rewriter
    ? [
        "The request is searched as you typed it.",
        "A small model rewrites it in the catalogue’s words; each line is searched as well.",
        "Both rankings are fused; you see which tools moved, and the time by stage.",
      ]
    : ["The request is searched as you typed it; this server has no rewriter.", "You see the tools by rank, and the time by stage."];
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
  return [el("h2", {}, "Providers"), el("ul", { class: "chips" }, links, rest)];
}

export function show(parameters) {
  const text = parameters.get("q") ?? "";
  if (!text) {
    const fresh = Boolean(shown);
    if (fresh) {
      asking?.abort();
      shown = "";
      $("utterance").value = "";
      setAbout(about);
    }
    if (matchMedia("(hover: hover)").matches && (fresh || document.activeElement === document.body)) $("utterance").focus();
    return;
  }
  for (const id of ["top", "rewrite", "provider", "category", "deadline"])
    if (parameters.has(id)) $(id).value = parameters.get(id);
  if (["provider", "category", "deadline"].some((id) => $(id).value)) $("more").open = true;
  if (!$("top").value) $("top").value = "10";
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
  const wanted = new URLSearchParams({ q: text, top: $("top").value });
  if ($("rewrite").value !== "auto") wanted.set("rewrite", $("rewrite").value);
  for (const id of ["provider", "category", "deadline"]) if ($(id).value.trim()) wanted.set(id, $(id).value.trim());
  const hash = `#/?${wanted}`;
  if (location.hash === hash) search(text, wanted.toString());
  else location.hash = hash;
}

function body(text, rewrite) {
  const typed = (id) => [$(id).value.trim()].filter(Boolean);
  const filters = { provider: typed("provider"), category: typed("category") };
  const top = Number($("top").value);
  const deadline = Math.round(Number($("deadline").value));
  return {
    utterance: text,
    k: Math.min(Math.max(DEPTH, top), about?.limits.k ?? DEPTH),
    rewrite,
    ...(filters.provider.length || filters.category.length ? { filters } : {}),
    ...(deadline > 0 && rewrite !== "off" ? { deadline_ms: deadline } : {}),
  };
}

async function search(text, wanted) {
  asking?.abort();
  const mine = (asking = new AbortController());
  shown = wanted;
  await serverKnown;
  if (mine !== asking) return;
  const mode = $("rewrite-option").hidden ? "off" : $("rewrite").value;
  const state = { text, top: Number($("top").value), mode, about, raw: null, final: null, waiting: mode !== "off" };
  $("ask-said").textContent = "Searching";
  $("answer").setAttribute("aria-busy", "true");
  try {
    const both = [ask(body(text, "off"), mine, (found) => (state.raw = found))];
    if (mode !== "off") both.push(ask(body(text, mode), mine, (found) => Object.assign(state, { final: found, waiting: false })));
    for (const request of both) request.then(() => mine === asking && state.raw && draw(state), () => {});
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
    el("p", { class: "prints" }, prints.flatMap(([what, print], index) => [index ? " · " : "", `${what} `, foreign(print)])),
  );
}
