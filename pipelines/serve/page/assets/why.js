// A tool's way to its rank: in short, and in sentences at a click.

import { clean, el, foreign } from "./dom.js";

function ordinal(rank) {
  const tens = rank % 100;
  const ending = tens > 10 && tens < 14 ? "th" : { 1: "st", 2: "nd", 3: "rd" }[rank % 10] ?? "th";
  return `${rank}${ending}`;
}

function short(tool, rank) {
  const spots = tool.found_by.map(({ list, rank: spot }) => `${list} #${spot}`);
  if (!spots.length) spots.push("named in the request");
  const steps = [spots.map((text) => text.replaceAll(" ", "\u00a0")).join(" · ")];
  if (tool.fused_rank) steps.push(`fused\u00a0#${tool.fused_rank}`, `reranked\u00a0#${rank}`);
  return clean(steps.join(" → "));
}

function lineSentence(number, line, rank, answer) {
  const votes = answer.rewrite.votes[number];
  const voted = votes ? `; ${votes} ${votes === 1 ? "answer" : "answers"} of the model voted for this line` : "";
  const found = rank ? `ranks it ${ordinal(rank)}` : "does not find it";
  return el("li", {}, `Line ${number + 1}, “`, foreign(line), `”, ${found}${voted}.`);
}

function sentences(tool, rank, answer) {
  const ranks = new Map(tool.found_by.map((spot) => [spot.list, spot.rank]));
  const raw = ranks.get("raw");
  const steps = [el("li", {}, raw ? `The request as typed ranks it ${ordinal(raw)}.` : "The request as typed does not find it.")];
  if (!ranks.size) steps.push(el("li", {}, "The request names this tool, so it comes first."));
  const lines = answer.fallback ? [] : answer.rewrite?.lines ?? [];
  for (const [number, line] of lines.entries()) steps.push(lineSentence(number, line, ranks.get(`line ${number + 1}`), answer));
  if (tool.fused_rank) {
    if (lines.length) steps.push(el("li", {}, `Fused, these lists rank it ${ordinal(tool.fused_rank)}.`));
    const moved = rank === tool.fused_rank ? "leaves it there" : `moves it from rank ${tool.fused_rank} to ${rank}`;
    const read = tool.fused_rank <= answer.rerank.tools ? moved : `reads only the first ${answer.rerank.tools} tools, so it stays behind them`;
    steps.push(el("li", {}, `The reranker ${read}.`));
  }
  if (tool.probability !== null) steps.push(el("li", {}, `It is needed with an estimated probability of ${tool.probability.toFixed(2)}.`));
  return steps;
}

export function why(tool, rank, answer) {
  const plain = tool.found_by.length === 1 && !tool.fused_rank && !answer.rewrite?.lines.length;
  const summary = el("summary", {}, plain ? "why here" : short(tool, rank));
  return el("details", { class: "why" }, summary, el("ol", {}, sentences(tool, rank, answer)));
}
