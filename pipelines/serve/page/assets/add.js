// Add a pasted catalogue: the server parses it, the user picks tools, they are added in batches within its limits.

import { call, Failure } from "./api.js";
import { labels } from "./ask.js";
import { $, count, el, fill, foreign, keyNotice, scrolling, trouble } from "./dom.js";

let about = null;

export function init() {
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

export function setAbout(value) {
  about = value;
  const may = about?.scopes.includes("write");
  fill($("add-key"), !may && keyNotice(about, "write", "add tools"));
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
  const limit = about ? `${Math.floor(about.limits.bytes / 1024).toLocaleString("en")} KiB` : "the server allows";
  const way = "raise limits.bytes in the server’s config, or use rewrite-index add";
  return new Failure(413, `The document is larger than ${limit}: ${way}.`);
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
    const { tools, skipped } = await call("POST", "/v1/catalogue/read", body);
    preview(tools, skipped);
  } catch (failure) {
    fill($("read"), trouble(failure.status === 413 ? tooLarge() : failure));
  }
}

function preview(tools, skipped) {
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
    button.textContent = chosen ? `Add ${count(chosen, "tool", "tools")}` : "Select tools to add";
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
  const counts = kinds.filter(([number]) => number).map(([number, state]) => `${number.toLocaleString("en")} ${WORDS[state]}`);
  const summary = `${count(tools.length, "tool", "tools")}: ${counts.join(", ")}.`;
  $("read-said").textContent = summary;
  fill(
    $("read"),
    el("p", { class: "summary" }, summary),
    skipped.length && el("div", { class: "notice" }, skipped.map((why) => el("p", {}, "Skipped: ", foreign(why)))),
    scrolling("Tools of the document", el("table", { class: "preview" }, el("thead", {}, head), body)),
    el("div", { class: "row" }, button),
    outcome,
  );
  tally();
  $("read").scrollIntoView({ block: "nearest" });
}

const WORDS = { new: "new", changed: "changed", same: "already here", added: "added", held: "waits for approval" };

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

// Batches within the server's limits of tools and bytes.
function* batches(rows) {
  let batch = [];
  let size = 100;
  for (const row of rows) {
    const { state, ...tool } = row.tool;
    const bytes = new TextEncoder().encode(JSON.stringify(tool)).length + 1;
    if (batch.length && (batch.length >= about.limits.tools || size + bytes > about.limits.bytes)) {
      yield batch;
      [batch, size] = [[], 100];
    }
    batch.push({ ...row, sent: tool });
    size += bytes;
  }
  if (batch.length) yield batch;
}

async function put(rows, button, outcome, tally) {
  const chosen = rows.filter(({ box }) => box.checked);
  const done = { added: 0, updated: 0, unchanged: 0 };
  const findings = [];
  const bar = el("progress", { max: chosen.length, value: 0, "aria-label": "Tools added" });
  button.disabled = true;
  fill(outcome, bar);
  try {
    for (const batch of batches(chosen)) {
      const change = await call("PUT", "/v1/tools", { tools: batch.map(({ sent }) => sent) });
      for (const kind of Object.keys(done)) done[kind] += change[kind];
      for (const [kind, tools] of [["Waits for approval", change.held], ["Flagged", change.flagged]])
        for (const tool of tools) findings.push(el("p", {}, `${kind}: `, foreign(`${tool.id}: ${tool.reasons.join("; ")}`)));
      bar.value += batch.length;
      const held = new Set(change.held.map(({ id }) => id));
      for (const { tool, box } of batch) {
        box.checked = false;
        box.disabled = true;
        box.closest("tr").querySelector(".badge").textContent = held.has(tool.id) ? WORDS.held : WORDS.added;
      }
    }
    fill(
      outcome,
      el("p", { class: "done" }, `${outcomeOf(done)} `, el("a", { href: "#/catalogue" }, "See the catalogue")),
      findings.length && el("div", { class: "notice" }, findings),
    );
  } catch (failure) {
    const before = bar.value ? `${bar.value} of ${chosen.length} were added, then: ` : "";
    fill(outcome, trouble(new Failure(failure.status, before + failure.message)));
  }
  tally();
  dispatchEvent(new CustomEvent("catalogue-changed"));
}

function outcomeOf({ added, updated, unchanged }) {
  const parts = [added && `added ${added}`, updated && `replaced ${updated}`, unchanged && `left ${unchanged} unchanged`];
  const text = parts.filter(Boolean).join(", ");
  if (!text) return "Added none.";
  return `${text.charAt(0).toUpperCase()}${text.slice(1)}. Searches find them from now on.`;
}
