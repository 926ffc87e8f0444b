// Single-key shortcuts; off while typing, and if the user turns them off.

import { $ } from "./dom.js";

const NAME = "toolrewrite-single-keys";
const VIEWS = ["#/", "#/catalogue", "#/add", "#/reports", "#/calls"];
const STAGES = { d: "right-detect", v: "right-votes", r: "right-rewrite", e: "right-rerank", c: "compare" };
const BOXES = { ask: "utterance", catalogue: "wanted", add: "document", calls: "call-tool" };

function shown() {
  return document.querySelector("main > section:not([hidden])");
}

function step(by) {
  const tools = [...shown().querySelectorAll(".open")].filter((tool) => tool.checkVisibility());
  if (!tools.length) return;
  const now = tools.indexOf(document.activeElement);
  const next = now < 0 ? (by > 0 ? 0 : tools.length - 1) : Math.min(tools.length - 1, Math.max(0, now + by));
  tools[next].focus();
  tools[next].scrollIntoView({ block: "nearest" });
}

// Open or close the explanation of the tool that has the focus.
function explain() {
  const why = document.activeElement.closest(".tool")?.querySelector(".why");
  if (why) why.open = !why.open;
}

function pressed(event) {
  if (event.ctrlKey || event.altKey || event.metaKey || event.isComposing) return;
  const typing = event.target.closest("textarea, select, input:not([type=radio], [type=checkbox])");
  if (event.key === "Escape" && typing && !document.querySelector("dialog[open]")) typing.blur();
  if (typing || !$("single-keys").checked) return;
  if (document.querySelector("dialog[open]")) return;
  const view = ["1", "2", "3", "4", "5"].indexOf(event.key);
  if (view >= 0) location.hash = VIEWS[view];
  else if (event.key === "/") $(BOXES[shown().dataset.view])?.focus();
  else if (event.key === "?") $("help-dialog").showModal();
  else if (event.key === "j" || event.key === "k") step(event.key === "j" ? 1 : -1);
  else if (event.key === "w") explain();
  else if (event.key in STAGES) shown().querySelector(`[data-chip="${STAGES[event.key]}"]`)?.click();
  else return;
  event.preventDefault();
}

export function shortcuts() {
  const box = $("single-keys");
  try {
    box.checked = localStorage.getItem(NAME) !== "off";
    box.addEventListener("change", () => localStorage.setItem(NAME, box.checked ? "on" : "off"));
  } catch {
    // no storage: on at every start
  }
  document.addEventListener("keydown", pressed);
}
