// The servers behind the gateway, a form that calls a tool, and the newest calls.

import { call } from "./api.js";
import { $, el, fill, foreign, keyNotice, milliseconds, scrolling, trouble } from "./dom.js";

const WHEN = new Intl.DateTimeFormat("en", { timeStyle: "medium" });
let about = null;

export function init() {
  $("call-form").addEventListener("submit", async (event) => {
    event.preventDefault();
    await callTool();
  });
}

export function setAbout(value) {
  about = value;
}

export async function show(query) {
  if (query.get("tool")) $("call-tool").value = query.get("tool");
  await refresh();
}

async function refresh() {
  if (about && !about.scopes.includes("call")) {
    $("call-form").hidden = true;
    fill($("call-result"));
    fill($("upstreams"), keyNotice(about, "call", "see servers and call their tools"));
  } else await refreshServers();
  if (!about?.scopes.includes("admin")) return fill($("calls"));
  try {
    const { calls } = await call("GET", "/v1/admin/calls");
    fill($("calls"), calls.length ? newest(calls) : el("p", { class: "empty" }, "No calls yet."));
  } catch {
    fill($("calls")); // admin routes are off
  }
}

async function refreshServers() {
  try {
    const { upstreams } = await call("GET", "/v1/upstreams");
    fill($("upstreams"), upstreams.length ? servers(upstreams) : none());
    $("call-form").hidden = !upstreams.length;
  } catch (failure) {
    $("call-form").hidden = true;
    fill($("upstreams"), trouble(failure));
  }
}

async function callTool() {
  let parsed;
  try {
    parsed = JSON.parse($("call-arguments").value.trim() || "{}");
  } catch {
    fill($("call-result"), trouble({ status: 422, message: "The arguments are not JSON." }));
    return;
  }
  fill($("call-result"), el("p", { class: "waits" }, "Calling …"));
  const began = performance.now();
  try {
    const answer = await call("POST", "/v1/call", { tool: $("call-tool").value.trim(), arguments: parsed });
    const took = milliseconds(performance.now() - began);
    const text = answer.content.map((part) => part.text ?? JSON.stringify(part)).join("\n");
    const said = answer.is_error ? `The tool failed after ${took}.` : `The tool answered in ${took}.`;
    fill($("call-result"), el("p", { role: "status" }, said), el("pre", { tabindex: "0" }, foreign(text.slice(0, 100000))));
  } catch (failure) {
    fill($("call-result"), trouble(failure));
  }
  await refresh();
}

// On a narrow screen every cell is a line with its column's name.
function table(label, heads, rows) {
  const top = el("tr", {}, heads.map((name) => el("th", { scope: "col" }, name)));
  for (const row of rows) [...row.children].forEach((cell, index) => (cell.dataset.column = heads[index]));
  return scrolling(label, el("table", { class: "calls" }, el("thead", {}, top), el("tbody", {}, rows)));
}

function servers(upstreams) {
  const rows = upstreams.map(({ name, kind, state, error, tools, starts, running, calls }) =>
    el(
      "tr",
      {},
      el("th", { scope: "row" }, foreign(name)),
      el("td", {}, kind),
      el("td", {}, el("span", {}, state, error ? [": ", foreign(error)] : [])),
      el("td", {}, el("a", { href: `#/catalogue?provider=${encodeURIComponent(name)}` }, String(tools))),
      el("td", {}, String(starts)),
      el("td", {}, String(running)),
      el("td", {}, Object.entries(calls).map(([outcome, number]) => `${outcome} ${number}`).join(", ") || "none"),
    ),
  );
  return table("Servers", ["Server", "Kind", "State", "Tools", "Connections", "Running", "Calls"], rows);
}

function newest(calls) {
  const rows = calls.map(({ time, key, tool, outcome, ms, rank }) =>
    el(
      "tr",
      {},
      el("td", {}, WHEN.format(new Date(time * 1000))),
      el("td", {}, foreign(key)),
      el("td", {}, foreign(tool)),
      el("td", {}, outcome),
      el("td", {}, milliseconds(ms)),
      el("td", {}, rank === null ? "–" : String(rank)),
    ),
  );
  return [el("h2", {}, "Newest calls"), table("Newest calls", ["Time", "Key", "Tool", "Outcome", "Took", "Rank"], rows)];
}

function none() {
  const example = el("code", {}, "mcp: [{name: files, command: [my-mcp-server]}]");
  return el("p", { class: "empty" }, "The server’s config names no servers to call. Add ", example, " to it.");
}
