// The stages of a search that can be left out, and the two settings that are compared.

import { el } from "./dom.js";

export const NAMES = { detect: "Detector", votes: "Votes", rewrite: "Rewriter", rerank: "Reranker" };
const KEYS = { detect: "d", votes: "v", rewrite: "r", rerank: "e" };

// The stages that this server has.
export function available(about) {
  const roles = (about?.models ?? []).map((model) => model.role);
  const [rewrite, rerank] = [roles.includes("rewriter") && "rewrite", roles.includes("reranker") && "rerank"];
  return [about?.detects && "detect", about?.votes && "votes", rewrite, rerank].filter(Boolean);
}

// The stages that the server uses by default.
function recommended(about) {
  return available(about).filter((stage) => stage !== "rewrite" || about.asks);
}

// The same without rewriter and reranker; where neither is at work, without votes.
function simpler(stages) {
  const raw = stages.filter((stage) => stage !== "rewrite" && stage !== "rerank");
  return raw.length < stages.length ? raw : raw.filter((stage) => stage !== "votes");
}

// The two settings of an address: stages of the right side and of the left one; left is null for one ranking alone.
export function read(parameters, about) {
  const known = available(about);
  const parse = (value) => known.filter((stage) => value.split(".").includes(stage));
  const right = parameters.has("with") ? parse(parameters.get("with")) : recommended(about);
  const beside = parameters.get("beside");
  const left = beside === null ? simpler(right) : beside === "none" ? null : parse(beside);
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
  const use = (stage) => (stages.includes(stage) ? "auto" : "off");
  return { rewrite, detect: use("detect"), votes: about?.votes ? use("votes") : "auto", rerank: use("rerank") };
}

export function title(stages, about) {
  const words = [stages.includes("rewrite") && "Rewritten", stages.includes("rerank") && "Reranked"].filter(Boolean);
  if (words.length) return words.join(", ").replace(", R", ", r");
  return about?.votes ? differ(stages, "votes") : "Raw";
}

function differ(stages, stage) {
  return `With${stages.includes(stage) ? "" : "out"} ${NAMES[stage].toLowerCase()}`;
}

// Titles of two settings that differ in what a title leaves out.
export function titles({ left, right }, about) {
  const [one, other] = [title(left, about), title(right, about)];
  if (one !== other) return [one, other];
  const stage = ["detect", "votes"].find((stage) => left.includes(stage) !== right.includes(stage));
  return stage ? [differ(left, stage), differ(right, stage)] : [one, other];
}

export function note(stages, about) {
  const words = [stages.includes("rewrite") ? "fused with the rewriter’s lines" : "the request as typed"];
  const raw = !stages.includes("rewrite") && !stages.includes("rerank");
  if (raw && stages.includes("votes")) words.push("with votes of similar ones");
  if (!raw && about?.votes && !stages.includes("votes")) words.push("without votes");
  if (about?.detects && !stages.includes("detect")) words.push("without the detector");
  return words.join(", ");
}

// One button per stage; `change` gets a function from the settings, which may be newer than those drawn, to new ones.
export function chips(side, settings, about, change) {
  const buttons = available(about).map((stage) => {
    const on = settings[side].includes(stage);
    const toggle = (now) => {
      const stages = available(about).filter((one) => (now[side] ?? settings[side]).includes(one) !== (one === stage));
      return { ...now, [side]: stages, asked: now.asked || side === "left" };
    };
    const onclick = () => change(toggle);
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
  const others = [simpler(settings.right), recommended(about), available(about), []];
  const left = others.find((stages) => stages.join() !== settings.right.join());
  const onclick = () => change((now) => ({ ...now, left: beside ? null : left, asked: !beside }));
  const properties = { type: "button", class: "quiet", "data-chip": "compare", title: "key c", onclick };
  return el("button", properties, beside ? "Show one ranking" : "Compare two settings");
}
