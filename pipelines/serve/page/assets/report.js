// Show a report in a sandboxed frame without an origin: it cannot reach the page, its storage or the server.

import { fetched } from "./api.js";
import { $, clean, el, fill, foreign } from "./dom.js";

async function show() {
  let name = "";
  try {
    name = decodeURIComponent(location.hash.slice(1));
  } catch {
    // not one of our links
  }
  fill($("report-name"), foreign(name));
  document.title = `${clean(name)} · toolrewrite`;
  try {
    const html = await (await fetched(`/v1/reports/${encodeURIComponent(name)}`)).text();
    const frame = el("iframe", { sandbox: "allow-scripts", title: `Report ${name}`, tabindex: "0" });
    frame.srcdoc = html;
    fill($("frame"), frame);
  } catch (failure) {
    const way = failure.status === 401 || failure.status === 403 ? "Go back and enter a key." : "";
    fill($("frame"), el("div", { class: "trouble", role: "alert" }, el("p", {}, foreign(failure.message), ` ${way}`)));
  }
}

addEventListener("hashchange", show);
show();
