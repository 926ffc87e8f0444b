// Routing between views, the API key, and the status line.

import { call, key, Failure } from "./api.js";
import { $, count, el, fill, foreign, trouble } from "./dom.js";
import { shortcuts } from "./keyboard.js";
import * as add from "./add.js";
import * as ask from "./ask.js";
import * as calls from "./calls.js";
import * as catalogue from "./catalogue.js";
import * as reports from "./reports.js";
import * as tool from "./tool.js";

const VIEWS = { ask, catalogue, add, reports, calls };
const TITLES = { ask: "toolrewrite", catalogue: "Catalogue", add: "Add tools", reports: "Reports", calls: "Servers" };
let about = null;
let first = true;

function route() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  const view = path in VIEWS ? path : "ask";
  const before = document.querySelector("main > section:not([hidden])")?.dataset.view;
  for (const section of document.querySelectorAll("main > section")) section.hidden = section.dataset.view !== view;
  for (const link of document.querySelectorAll("nav a")) {
    if (link.dataset.view === view) {
      link.setAttribute("aria-current", "page");
      const nav = link.parentElement; // it scrolls where it is too narrow for all of them
      nav.scrollLeft = link.offsetLeft - nav.offsetLeft - (nav.clientWidth - link.offsetWidth) / 2;
    } else link.removeAttribute("aria-current");
  }
  document.title = view === "ask" ? TITLES.ask : `${TITLES[view]} · toolrewrite`;
  if (!first && before !== view) {
    scrollTo(0, 0);
    $(`${view}-title`).focus({ preventScroll: true });
  }
  first = false;
  VIEWS[view].show(new URLSearchParams(query ?? ""), about);
}

async function loadAbout() {
  try {
    about = await call("GET", "/v1/about");
  } catch (failure) {
    about = null;
    showStatus(failure);
    return failure;
  }
  showStatus(null);
  return null;
}

function showStatus(failure) {
  const named = about && key.get();
  fill($("key-state"), named ? foreign(`Key: ${about.caller}`) : "Key");
  $("key-button").classList.toggle("wanted", failure?.status === 401);
  for (const part of [...Object.values(VIEWS), tool]) part.setAbout?.(about, failure);
  if (!about) {
    fill($("status"), failure ? failure.message : "");
    return;
  }
  const facts = [count(about.tools, "tool", "tools")];
  for (const model of about.models) {
    if (model.role !== "rewriter") facts.push(model.id === model.role ? [model.role] : [`${model.role} `, foreign(model.id)]);
    else {
      const how = [model.template && `template ${model.template}`, model.engine].filter(Boolean).join(", ");
      facts.push([`rewriter ${model.ready ? "ready" : model.error ? "cannot start" : "not ready"}`, how ? [" (", foreign(how), ")"] : []].flat());
    }
  }
  if (!about.models.some((model) => model.role === "rewriter")) facts.push("no rewriter");
  fill($("status"), facts.flatMap((fact, index) => (index ? [" · ", fact] : [fact])).flat());
}

function keys() {
  const dialog = $("key-dialog");
  $("key-button").addEventListener("click", () => {
    showCaller();
    fill($("key-trouble"));
    $("key").value = "";
    $("key-forget").hidden = !key.get();
    dialog.showModal();
    $("key").focus();
  });
  $("key-form").addEventListener("submit", async (event) => {
    event.preventDefault();
    const typed = $("key").value.trim();
    if (!typed || !key.isValid(typed)) {
      fill($("key-trouble"), trouble(new Failure(422, "Type or paste a key without spaces.")));
      return;
    }
    const before = key.get();
    key.set(typed);
    const failure = await loadAbout();
    if (failure) {
      fill($("key-trouble"), el("p", { class: "trouble" }, foreign(failure.message)));
      if (failure.status === 401) key.set(before);
      return;
    }
    dialog.close();
    route();
  });
  $("key-forget").addEventListener("click", async () => {
    key.set("");
    dialog.close();
    await loadAbout();
    route();
  });
}

function showCaller() {
  if (!about && key.get()) fill($("key-who"), "The server no longer knows this key.");
  else if (!about) fill($("key-who"), "This server answers only with a key.");
  else {
    const may = about.scopes.length ? about.scopes.join(" and ") : "nothing";
    const used = ["Key in use: ", foreign(about.caller), `, which may ${may}.`];
    fill($("key-who"), key.get() ? used : `Without a key you may ${may}.`);
  }
}

for (const dialog of document.querySelectorAll("dialog")) {
  dialog.addEventListener("click", (event) => {
    const { left, right, top, bottom } = dialog.getBoundingClientRect();
    const inside = event.clientX >= left && event.clientX <= right && event.clientY >= top && event.clientY <= bottom;
    if ((event.target === dialog && !inside) || event.target.closest("[data-close]")) dialog.close();
  });
}
$("help-button").addEventListener("click", () => $("help-dialog").showModal());
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  $("main").focus();
});
for (const view of Object.values(VIEWS)) view.init?.();
keys();
shortcuts();
addEventListener("hashchange", route);
addEventListener("catalogue-changed", loadAbout);
await loadAbout();
route();
