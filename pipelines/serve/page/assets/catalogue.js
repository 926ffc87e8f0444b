// Browse the catalogue page by page: by name while typing, or by meaning.

import { call } from "./api.js";
import { labels } from "./ask.js";
import { $, count, el, fill, foreign, trouble } from "./dom.js";
import { open } from "./tool.js";

const PAGE = 50;
let asking = null;
let about = null;
let visible = false;

export function init() {
  let timer = 0;
  const later = () => {
    clearTimeout(timer);
    timer = setTimeout(updateUrl, 180);
  };
  $("catalogue-form").addEventListener("submit", (event) => {
    event.preventDefault();
    clearTimeout(timer);
    updateUrl();
  });
  $("wanted").addEventListener("input", () => by() === "name" && later());
  for (const radio of document.querySelectorAll("input[name=by]"))
    radio.addEventListener("change", () => {
      $("wanted").placeholder = by() === "name" ? "Part of a name or id" : "What a tool should do";
      updateUrl();
    });
  for (const id of ["of-provider", "of-category"]) {
    $(id).addEventListener("focus", labels, { once: true });
    $(id).addEventListener("change", updateUrl);
  }
  addEventListener("catalogue-changed", () => {
    if (!visible) return;
    load();
    findings();
  });
}

export function setAbout(value) {
  about = value;
  if (visible) findings();
}

// Tools that failed a check, for callers who may change the catalogue.
async function findings() {
  if (!about?.scopes.includes("write")) return fill($("findings"));
  try {
    const { held, flagged, refused, total } = await call("GET", "/v1/findings");
    const kinds = [
      ["waits for approval", held.flatMap((tool) => tool.reasons.map((why) => `${tool.id}: ${why}`))],
      ["flagged", flagged.flatMap((tool) => tool.reasons.map((why) => `${tool.id}: ${why}`))],
      ["refused", refused],
    ];
    const lines = kinds.flatMap(([kind, reasons]) => reasons.map((why) => el("li", {}, `${kind}: `, foreign(why))));
    const summary = `${count(total, "tool", "tools")} failed a check`;
    fill($("findings"), total && el("details", { class: "findings" }, el("summary", {}, summary), el("ul", {}, lines)));
  } catch {
    fill($("findings")); // the list of tools below shows the trouble
  }
}

function by() {
  return document.querySelector("input[name=by]:checked").value;
}

export function show(parameters) {
  visible = true;
  $("wanted").value = parameters.get("q") ?? "";
  $("of-provider").value = parameters.get("provider") ?? "";
  $("of-category").value = parameters.get("category") ?? "";
  const wanted = parameters.get("by") === "meaning" ? "meaning" : "name";
  for (const radio of document.querySelectorAll("input[name=by]")) radio.checked = radio.value === wanted;
  if (matchMedia("(hover: hover)").matches && document.activeElement === document.body) $("wanted").focus();
  load();
  findings();
}

// Keep the view in the URL, so that it can be shared.
function updateUrl() {
  const wanted = new URLSearchParams();
  if ($("wanted").value.trim()) wanted.set("q", $("wanted").value.trim());
  if (by() === "meaning") wanted.set("by", "meaning");
  if ($("of-provider").value.trim()) wanted.set("provider", $("of-provider").value.trim());
  if ($("of-category").value.trim()) wanted.set("category", $("of-category").value.trim());
  history.replaceState(null, "", wanted.size ? `#/catalogue?${wanted}` : "#/catalogue");
  load();
}

async function load() {
  asking?.abort();
  const mine = (asking = new AbortController());
  try {
    const text = $("wanted").value.trim();
    if (by() === "meaning" && text) await nearest(text, mine.signal);
    else await named(text, mine.signal);
  } catch (failure) {
    if (failure.name === "AbortError") return;
    $("catalogue-said").textContent = "";
    fill($("tools"), trouble(failure));
  }
}

function filters() {
  return { provider: $("of-provider").value.trim(), category: $("of-category").value.trim() };
}

async function nearest(text, signal) {
  const { provider, category } = filters();
  const body = { utterance: text, k: Math.min(PAGE, about?.limits.k ?? PAGE), rewrite: "off" };
  if (provider || category) body.filters = { provider: provider ? [provider] : [], category: category ? [category] : [] };
  const { tools } = (await call("POST", "/v1/search", body, signal)).results[0];
  const summary = tools.length ? `The ${count(tools.length, "tool", "tools")} nearest in meaning` : "No tool found";
  $("catalogue-said").textContent = summary;
  fill($("tools"), list(tools));
}

async function named(text, signal) {
  const wanted = new URLSearchParams({ limit: PAGE });
  if (text) wanted.set("contains", text);
  for (const [name, value] of Object.entries(filters())) if (value) wanted.set(name, value);
  const page = await call("GET", `/v1/tools?${wanted}`, undefined, signal);
  const some = text || filters().provider || filters().category;
  const of = some && about ? ` of ${about.tools.toLocaleString("en")}` : "";
  $("catalogue-said").textContent = count(page.total, "tool", "tools") + of;
  const all = list(page.tools);
  const other = el("button", { type: "button", onclick: meaning }, "Search by meaning");
  if (!page.total && text) fill($("tools"), el("p", { class: "empty" }, "No name or id contains that. ", other));
  else if (!page.total) fill($("tools"), el("p", { class: "empty" }, "No tool has these labels."));
  else fill($("tools"), all, more(all, wanted, page.next, signal));
}

function meaning() {
  document.querySelector("input[name=by][value=meaning]").click();
}

function more(all, wanted, next, signal) {
  if (next === null) return null;
  const button = el("button", { type: "button", class: "more-tools" }, "Show more");
  button.addEventListener("click", async () => {
    button.disabled = true;
    try {
      wanted.set("after", next);
      const page = await call("GET", `/v1/tools?${wanted}`, undefined, signal);
      const items = page.tools.map(item);
      all.append(...items);
      items[0]?.querySelector("button").focus();
      next = page.next;
      button.disabled = false;
      if (next === null) button.remove();
    } catch (failure) {
      if (failure.name !== "AbortError") button.replaceWith(trouble(failure));
    }
  });
  return button;
}

function list(tools) {
  return el("ul", { class: "tools list" }, tools.map(item));
}

function item(tool) {
  const labels = [tool.provider, tool.category].filter(Boolean);
  return el(
    "li",
    { class: "tool" },
    el(
      "div",
      { class: "what" },
      el("button", { type: "button", class: "open", onclick: () => open(tool.id, tool) }, foreign(tool.name)),
      labels.length ? el("span", { class: "by" }, labels.flatMap((label, index) => [index ? " · " : "", foreign(label)])) : null,
      tool.description ? el("p", { class: "about" }, foreign(tool.description)) : null,
    ),
  );
}
