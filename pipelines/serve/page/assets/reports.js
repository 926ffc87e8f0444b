// The reports that the server's config names.

import { call } from "./api.js";
import { $, el, fill, foreign, trouble } from "./dom.js";

const WHEN = new Intl.DateTimeFormat("en", { dateStyle: "medium", timeStyle: "short" });

export async function show() {
  try {
    const { reports } = await call("GET", "/v1/reports");
    fill($("reports"), reports.length ? el("ul", { class: "cards" }, reports.map(card)) : none());
  } catch (failure) {
    fill($("reports"), trouble(failure));
  }
}

function card({ name, title, headline, written }) {
  const missing = el("p", { class: "hint" }, "This run has no report yet.");
  if (written === null) return el("li", { class: "card" }, el("h2", {}, foreign(name)), missing);
  return el(
    "li",
    { class: "card" },
    el("h2", {}, el("a", { class: "open", href: `/report#${encodeURIComponent(name)}` }, foreign(name))),
    headline ? el("p", {}, foreign(headline)) : null,
    el("p", { class: "hint" }, title ? [foreign(title), " · "] : [], WHEN.format(new Date(written * 1000))),
  );
}

function none() {
  const example = el("code", {}, "reports: {evaluation: runs/sample/eval}");
  return el("p", { class: "empty" }, "The server’s config names no runs. Add ", example, " to it.");
}
