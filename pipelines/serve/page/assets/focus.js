// The focus in the answer, which stays where it was when the answer is drawn again.

import { $ } from "./dom.js";

const PARTS = [".open", ".why summary"];

const sideOf = (tool) => (tool.closest(".column").classList.contains("left") ? "left" : "right");
const opened = (why) => `${sideOf(why)} ${why.closest(".tool").tool}`;

// Where an element is: a stage's button, or a tool with its rank; nothing for any other.
function place(node) {
  const tool = node.closest(".tool");
  if (!tool) return { chip: node.dataset.chip };
  const rank = [...tool.parentElement.children].indexOf(tool);
  return { id: tool.tool, side: sideOf(tool), rank, part: PARTS.find((selector) => node.matches(selector)) };
}

// Note what has the focus, and which explanations are open.
export function hold(state) {
  const [answer, active] = [$("answer"), document.activeElement];
  if (active !== answer && active !== document.body) state.focused = answer.contains(active) ? place(active) : null;
  state.open = new Set([...(state.open ?? []), ...[...answer.querySelectorAll(".why[open]")].map(opened)]);
}

// The same place in the new answer; where the tool has gone, that of its rank, but only once both rankings are there.
function find({ chip, id, side, rank, part }, { settings, left, right }) {
  if (chip) return document.querySelector(`[data-chip="${chip}"]`);
  const rows = (side) => [...$("answer").querySelectorAll(`.column.${side} .tool`)].filter((row) => row.tool);
  const [own, others] = [rows(side), rows("right")];
  const same = (row) => row.tool === id;
  const complete = right && (left || !settings.left);
  const row = own.find(same) ?? (complete ? (others.find(same) ?? (own.length ? own : others)[rank]) : null);
  return row?.querySelector(part);
}

// Give it the focus again, or else the answer; a focus that is elsewhere stays there.
export function restore(state) {
  const answer = $("answer");
  for (const why of answer.querySelectorAll(".why")) why.open = state.open.has(opened(why));
  if (!state.focused || ![answer, document.body].includes(document.activeElement)) return;
  if (state.focused.side === "left" || state.focused.chip?.startsWith("left"))
    answer.querySelector(".narrow [value=left]")?.click();
  find(state.focused, state)?.focus();
  if (document.activeElement === document.body) answer.focus({ preventScroll: true });
}
