// A pasted catalogue: read by the server, looked at here, added in as many changes as the server's limits ask for.

import { call, Failure } from "./api.js";
import { labels } from "./ask.js";
import { $, count, el, fill, foreign, scrolling, trouble } from "./dom.js";

let about = null;

export function begin() {
  $("add-form").addEventListener("submit", (event) => {
    event.preventDefault();
    read();
  });
  $("file").addEventListener("change", async () => {
    const [file] = $("file").files;
    if (file) take(file);
    $("file").value = "";
  });
  $("of-document").addEventListener("focus", labels, { once: true });
  const box = $("document");
  box.addEventListener("dragover", (event) => event.preventDefault());
  box.addEventListener("drop", (event) => {
    const [file] = event.dataTransfer.files;
    if (!file) return;
    event.preventDefault();
    take(file);
  });
  box.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) read();
  });
}

export function told(found) {
  about = found;
  const may = about?.scopes.includes("write");
  const said = about ? "You need a key with the scope “write” to add tools." : "You need a key to add tools.";
  const enter = el("button", { type: "button", onclick: () => $("key-button").click() }, "Enter a key");
  fill($("add-key"), !may && el("div", { class: "notice" }, el("p", {}, said), enter));
}

export function show() {}

async function take(file) {
  if (about && file.size > about.limits.bytes) {
    fill($("read"), trouble(tooLarge()));
    return;
  }
  $("document").value = await file.text();
  read();
}

function tooLarge() {
  const most = about ? `${Math.floor(about.limits.bytes / 1024).toLocaleString("en")} KiB` : "the server takes";
  const way = "raise limits.bytes in the server’s config, or use rewrite-index add";
  return new Failure(413, `The document is larger than ${most}: ${way}.`);
}

async function read() {
  const text = $("document").value;
  if (!text.trim()) {
    $("document").focus();
    return;
  }
  fill($("read"), el("p", { class: "waits" }, "Reading …"));
  try {
    const body = { document: text, format: $("format").value || null, provider: $("of-document").value.trim() };
    const { tools } = await call("POST", "/v1/catalogue/read", body);
    preview(tools);
  } catch (failure) {
    fill($("read"), trouble(failure.status === 413 ? tooLarge() : failure));
  }
}

function preview(tools) {
  const rows = tools.map((tool) => {
    const box = el("input", { type: "checkbox", "aria-label": tool.name });
    box.checked = tool.state !== "same";
    return { tool, box };
  });
  const all = el("input", { type: "checkbox", "aria-label": "All tools" });
  const button = el("button", { type: "button", class: "primary" });
  const outcome = el("div", { role: "status" });
  const tally = () => {
    const chosen = rows.filter(({ box }) => box.checked).length;
    button.textContent = chosen ? `Add ${count(chosen, "tool", "tools")}` : "Nothing is chosen";
    button.disabled = !chosen;
    button.hidden = rows.every(({ box }) => box.disabled);
    all.checked = chosen > 0 && rows.every(({ box }) => box.checked || box.disabled);
  };
  all.addEventListener("change", () => {
    for (const { box } of rows) if (!box.disabled) box.checked = all.checked;
    tally();
  });
  const heads = ["Tool", "State", "Description"].map((name) => el("th", { scope: "col" }, name));
  const head = el("tr", {}, el("td", {}, all), heads);
  const body = el("tbody", { onchange: tally }, rows.map(line));
  button.addEventListener("click", () => put(rows, button, outcome, tally));
  const kinds = ["new", "changed", "same"].map((state) => [tools.filter((tool) => tool.state === state).length, state]);
  const said = kinds.filter(([many]) => many).map(([many, state]) => `${many.toLocaleString("en")} ${WORDS[state]}`);
  const summary = `${count(tools.length, "tool", "tools")}: ${said.join(", ")}.`;
  $("read-said").textContent = summary;
  fill(
    $("read"),
    el("p", { class: "summary" }, summary),
    scrolling("Tools of the document", el("table", { class: "preview" }, el("thead", {}, head), body)),
    el("div", { class: "row" }, button),
    outcome,
  );
  tally();
  $("read").scrollIntoView({ block: "nearest" });
}

const WORDS = { new: "new", changed: "changed", same: "already here", added: "added" };

function line({ tool, box }) {
  const about = `${tool.description || "no description"}`;
  const has = tool.parameters.length ? count(tool.parameters.length, "parameter", "parameters") : "no parameters";
  return el(
    "tr",
    {},
    el("td", {}, box),
    el("th", { scope: "row" }, foreign(tool.name), el("small", {}, foreign(tool.id))),
    el("td", {}, el("span", { class: `badge ${tool.state}` }, WORDS[tool.state])),
    el("td", {}, el("p", { class: "about" }, foreign(about)), el("small", {}, has)),
  );
}

// As many tools at a time as the server takes, in number and in bytes.
function* changes(rows) {
  let some = [];
  let size = 100;
  for (const row of rows) {
    const { state, ...tool } = row.tool;
    const bytes = new TextEncoder().encode(JSON.stringify(tool)).length + 1;
    if (some.length && (some.length >= about.limits.tools || size + bytes > about.limits.bytes)) {
      yield some;
      [some, size] = [[], 100];
    }
    some.push({ ...row, sent: tool });
    size += bytes;
  }
  if (some.length) yield some;
}

async function put(rows, button, outcome, tally) {
  const chosen = rows.filter(({ box }) => box.checked);
  const done = { added: 0, updated: 0, unchanged: 0 };
  const bar = el("progress", { max: chosen.length, value: 0, "aria-label": "Tools added" });
  button.disabled = true;
  fill(outcome, bar);
  try {
    for (const some of changes(chosen)) {
      const change = await call("PUT", "/v1/tools", { tools: some.map(({ sent }) => sent) });
      for (const what of Object.keys(done)) done[what] += change[what];
      bar.value += some.length;
      for (const { box } of some) {
        box.checked = false;
        box.disabled = true;
        box.closest("tr").querySelector(".badge").textContent = WORDS.added;
      }
    }
    fill(outcome, el("p", { class: "done" }, `${outcomeOf(done)} `, el("a", { href: "#/catalogue" }, "See the catalogue")));
  } catch (failure) {
    const before = bar.value ? `${bar.value} of ${chosen.length} were added, then: ` : "";
    fill(outcome, trouble(new Failure(failure.status, before + failure.message)));
  }
  tally();
  dispatchEvent(new CustomEvent("catalogue-changed"));
}

function outcomeOf({ added, updated, unchanged }) {
  const parts = [added && `added ${added}`, updated && `replaced ${updated}`, unchanged && `kept ${unchanged} as before`];
  const said = parts.filter(Boolean).join(", ");
  return `${said.charAt(0).toUpperCase()}${said.slice(1)}. They can be found from now on.`;
}
