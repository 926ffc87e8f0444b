// The stages of a search that can be left out, and the two settings that are compared.

import { el } from "./dom.js";

export const NAMES = { detect: "Detector", rewrite: "Rewriter", rerank: "Reranker" };
const KEYS = { detect: "d", rewrite: "r", rerank: "e" };

// The stages that this server has.
export function available(about) {
  const roles = (about?.models ?? []).map((model) => model.role);
  return [about?.detects && "detect", roles.includes("rewriter") && "rewrite", roles.includes("reranker") && "rerank"].filter(Boolean);
}

// The stages that the server uses by default.
function recommended(about) {
  return available(about).filter((stage) => stage !== "rewrite" || about.asks);
}

// The two settings of an address: stages of the right side and of the left one; left is null for one ranking alone.
export function read(parameters, about) {
  const known = available(about);
  const parse = (value) => known.filter((stage) => value.split(".").includes(stage));
  const right = parameters.has("with") ? parse(parameters.get("with")) : recommended(about);
  const beside = parameters.get("beside");
  const raw = right.filter((stage) => stage === "detect");
  const left = beside === null ? raw : beside === "none" ? null : parse(beside);
  const asked = beside !== null && beside !== "none";
  return { right, left: left && (asked || left.length !== right.length) ? left : null, asked };
}

// The same as parts of an address; what is the default is left out.
export function write(parameters, { right, left, asked }, about) {
  const text = (stages) => stages.join(".") || "raw";
  if (text(right) !== text(recommended(about))) parameters.set("with", text(right));
  const usual = read(parameters, about).left;
  if (asked || (left === null && usual)) parameters.set("beside", left === null ? "none" : text(left));
  return parameters;
}

export function request(stages, about) {
  const rewrite = !stages.includes("rewrite") ? "off" : about?.asks ? "auto" : "on";
  return { rewrite, detect: stages.includes("detect") ? "auto" : "off", rerank: stages.includes("rerank") ? "auto" : "off" };
}

export function title(stages) {
  const words = [stages.includes("rewrite") && "Rewritten", stages.includes("rerank") && "Reranked"].filter(Boolean);
  return words.length ? words.join(", ").replace(", R", ", r") : "Raw";
}

export function note(stages, about) {
  const words = [stages.includes("rewrite") ? "fused with the rewriter’s lines" : "the request as typed"];
  if (about?.detects && !stages.includes("detect")) words.push("without the detector");
  return words.join(", ");
}

// One button per stage; `change` gets the new settings.
export function chips(side, settings, about, change) {
  const buttons = available(about).map((stage) => {
    const on = settings[side].includes(stage);
    const onclick = () => {
      const stages = available(about).filter((one) => settings[side].includes(one) !== (one === stage));
      change({ ...settings, [side]: stages, asked: settings.asked || side === "left" });
    };
    const key = side === "right" ? ` (key ${KEYS[stage]})` : "";
    const properties = { type: "button", class: "chip", "aria-pressed": `${on}`, "data-chip": `${side}-${stage}` };
    return el("button", { ...properties, title: `${on ? "Leave it out" : "Use it"}${key}`, onclick }, NAMES[stage]);
  });
  return el("span", { class: "stages", role: "group", "aria-label": `Stages of the ${side} ranking` }, buttons);
}

// The button that puts a second setting beside the first, or takes it away.
export function compare(settings, about, change) {
  if (!available(about).length) return null;
  const beside = settings.left !== null;
  const left = settings.right.includes("rewrite") || settings.right.includes("rerank") ? settings.right.filter((stage) => stage === "detect") : [];
  const onclick = () => change({ ...settings, left: beside ? null : left, asked: !beside });
  const properties = { type: "button", class: "quiet", "data-chip": "compare", title: "key c", onclick };
  return el("button", properties, beside ? "Show one ranking" : "Compare two settings");
}
