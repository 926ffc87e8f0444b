// A tool's way to its rank: in short, and in sentences at a click.

import { clean, count, el, fill, foreign, percent } from "./dom.js";

const ALONE = "without votes"; // MassTool's part
const DEPTH = 50; // of a part; a shorter one has no further tools

function ordinal(rank) {
  const tens = rank % 100;
  const ending = tens > 10 && tens < 14 ? "th" : { 1: "st", 2: "nd", 3: "rd" }[rank % 10] ?? "th";
  return `${rank}${ending}`;
}

// The tool's rank in each part of the retriever, 0 where a part does not list it, and the votes for it.
function partsOf(tool, { parts }) {
  const ranks = (parts?.parts ?? []).map(({ name, tools }) => ({ name, rank: tools.indexOf(tool.id) + 1, depth: tools.length }));
  return { ranks, votes: parts?.votes[tool.id] ?? 0, voters: parts?.voters ?? 0 };
}

function shortParts(tool, answer) {
  if (answer.voteless) return ["votes left out"];
  const { ranks, votes, voters } = partsOf(tool, answer);
  const spots = ranks.map(({ name, rank, depth }) => `${name} ${rank ? `#${rank}` : depth < DEPTH ? "–" : `>${depth}`}`);
  return voters ? [...spots, `${votes} of ${count(voters, "vote", "votes")}`] : spots;
}

function short(tool, rank, answer) {
  const lines = answer.rewrite?.lines.length && !answer.fallback;
  const lists = tool.found_by.map(({ list, rank: spot }) => `${list} #${spot}`);
  const parts = lines || !lists.length ? [] : shortParts(tool, answer);
  if (!lists.length) lists.push("named in the request");
  else if (!lines && !tool.fused_rank) lists.pop(); // its rank in the raw list is its rank
  if (!parts.length && !lists.length) return "why here";
  const steps = [parts, lists].filter((spots) => spots.length).map((spots) => spots.map((text) => text.replaceAll(" ", "\u00a0")).join(" · "));
  if (tool.fused_rank && lines) steps.push(`fused\u00a0#${tool.fused_rank}`);
  steps.push(tool.fused_rank ? `reranked\u00a0#${rank}` : `#${rank}`);
  return clean(steps.join(" → "));
}

function lineSentence(number, line, rank, answer) {
  const votes = answer.rewrite.votes[number];
  const voted = votes ? `; ${votes} ${votes === 1 ? "answer" : "answers"} of the model voted for this line` : "";
  const found = rank ? `ranks it ${ordinal(rank)}` : "does not find it";
  return el("li", {}, `Line ${number + 1}, “`, foreign(line), `”, ${found}${voted}.`);
}

function rawSentences(tool, raw, answer) {
  const { ranks, votes, voters } = partsOf(tool, answer);
  const ranked = raw ? `ranks it ${ordinal(raw)}` : "does not find it";
  if (answer.voteless) {
    const unused = el("li", {}, `${votes} of ${count(voters, "similar earlier request", "similar earlier requests")} needed it; here they have no vote.`);
    return [el("li", {}, `The request as typed, without votes, ${ranked}.`), ...(voters ? [unused] : [])];
  }
  const sentence = (name, words) => el("li", {}, ...(name === ALONE ? ["Without earlier requests"] : [foreign(name)]), ` ${words}.`);
  const steps = ranks.map(({ name, rank, depth }) => {
    if (name === ALONE) return sentence(name, rank ? `it would be ${ordinal(rank)}` : `it would be behind the first ${depth}`);
    const missing = depth < DEPTH ? "does not find it" : `does not have it among its first ${depth}`;
    return sentence(name, rank ? `ranks it ${ordinal(rank)}` : missing);
  });
  if (voters) steps.push(el("li", {}, `${votes} of ${count(voters, "similar earlier request", "similar earlier requests")} needed it.`));
  const subject = steps.length ? "In all, the request as typed" : "The request as typed";
  return [...steps, el("li", {}, `${subject} ${ranked}.`)];
}

function rerankSentence(tool, rank, { rerank }) {
  const moved = rank === tool.fused_rank ? "leaves it there" : `moves it from rank ${tool.fused_rank} to ${rank}`;
  const read = tool.fused_rank <= rerank.tools ? moved : `reads only the first ${rerank.tools} tools, so it stays behind them`;
  const share = rerank.weight && rerank.weight < 1 ? `, whose order counts ${percent(rerank.weight)},` : "";
  return el("li", {}, `The reranker${share} ${read}.`);
}

function sentences(tool, rank, answer) {
  const ranks = new Map(tool.found_by.map((spot) => [spot.list, spot.rank]));
  const steps = rawSentences(tool, ranks.get("raw"), answer);
  if (!ranks.size) steps.push(el("li", {}, "The request names this tool, so it comes first."));
  const lines = answer.fallback ? [] : answer.rewrite?.lines ?? [];
  for (const [number, line] of lines.entries()) steps.push(lineSentence(number, line, ranks.get(`line ${number + 1}`), answer));
  if (lines.length) steps.push(el("li", {}, `Fused, these lists rank it ${ordinal(tool.fused_rank ?? rank)}.`));
  if (tool.fused_rank) steps.push(rerankSentence(tool, rank, answer));
  if (tool.probability !== null && !answer.voteless) steps.push(el("li", {}, `It is needed with an estimated probability of ${tool.probability.toFixed(2)}.`));
  return steps;
}

// `explain` of the element reads the answer again.
export function why(tool, rank, answer) {
  const [summary, list] = [el("summary"), el("ol")];
  const explain = () => {
    fill(summary, short(tool, rank, answer));
    fill(list, sentences(tool, rank, answer));
  };
  explain();
  return Object.assign(el("details", { class: "why" }, summary, list), { explain });
}
