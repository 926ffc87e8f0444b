"""A model writes what users might say; what is copied, names its tool or is not found again is left out.

The round trip keeps what the retriever can find already, so that figures on such a set flatter that retriever. It is
there to keep nonsense out of training; what is good is told by utterances of real users (`rewrite-train renew`).
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tqdm import tqdm

from pipelines.data.dataset import Gold, Query, stable_hash
from pipelines.data.dataset_writer import normalize_utterance, query_id
from pipelines.phrasing import phrase
from pipelines.rewriters import find_parts, load_rewriter
from pipelines.runs import write_files
from pipelines.search import ToolSearch
from pipelines.train.run_folder import begin_drawing
from pipelines.train.utterances.settings import UtterancesConfig
from retrievers.fusion import ExactNames
from retrievers.index import Index
from retrievers.kind import Context
from retrievers.text import clean, document, tokens
from retrievers.types import Tool, ToolId
from rewrite.types import RewriteRequest

THIN = 24
"""Characters under which a description is no description."""
_QUOTED = re.compile(r'["“«]\s*([^"“”«»]{8,})["”»]')
_ASSISTANT = re.compile(
    r"(i'?m sorry|i am sorry|sorry,|as an? (ai|assistant)|i'?m an? (ai|assistant)|(a|the) (customer|person|user)\b|"
    r"sure[,!]|here('?s| is| are)\b|tool:|service:)",
    re.IGNORECASE,
)
CHUNK = 32
"""Tools that are written for at a time; a killed run loses no more than this."""


@dataclass(frozen=True, slots=True)
class Made:
    """A data set of utterances."""

    queries: tuple[Query, ...]
    gold: Mapping[str, Gold]
    tools: int
    """Tools that were written for."""
    written: int
    """Utterances before anything was left out."""
    left_out: Mapping[str, int]

    @property
    def served(self) -> int:
        """Tools that have at least one utterance."""
        return len({tool for gold in self.gold.values() for tools in gold.values() for tool in tools})


def make_utterances(config: UtterancesConfig, index: Index, context: Context, drafts: Path) -> Made:
    """Writes for every tool, chunk by chunk into `drafts`, then filters. A killed run goes on with its drafts."""
    ids = sorted(index.tools)
    if config.most_tools:
        ids = sorted(ids, key=lambda tool: stable_hash(f"{config.seed}/{tool}"))[: config.most_tools]
    written = draw(config, index, ids, context, drafts)
    return keep(config, index, written)


def draw(
    config: UtterancesConfig, index: Index, ids: Sequence[ToolId], context: Context, drafts: Path
) -> dict[ToolId, list[str]]:
    """What the model writes, tool by tool."""
    begin_drawing(drafts, config)
    chunks = [ids[start : start + CHUNK] for start in range(0, len(ids), CHUNK)]
    missing = [number for number in range(len(chunks)) if not _file(drafts, number).is_file()]
    if missing:
        settings = config.writer
        parts = find_parts(settings)
        writer = load_rewriter(settings, parts, context.device)
        longest = max(300, 4 * parts.template.max_characters)
        for number in tqdm(missing, desc="writing", disable=not context.show_progress):
            asks = [RewriteRequest(_shown(config, index, tool, longest)) for tool in chunks[number]]
            sampling = replace(settings.sampling, answers=config.draws, seed=settings.sampling.seed + number)
            found = writer.sample(asks, sampling)
            lines = {
                tool: list(dict.fromkeys(line for answer in answers if answer.finished for line in answer.lines))
                for tool, answers in zip(chunks[number], found, strict=True)
            }
            rows = [json.dumps({"tool": tool, "said": said}, ensure_ascii=False) for tool, said in lines.items()]
            write_files(drafts, {_file(drafts, number).name: "".join(f"{row}\n" for row in rows)})
    rows = [line for n in range(len(chunks)) for line in _file(drafts, n).read_text(encoding="utf-8").split("\n")]
    return {row["tool"]: row["said"] for row in map(json.loads, filter(None, rows))}


def _shown(config: UtterancesConfig, index: Index, tool: ToolId, longest: int) -> str:
    """What the writer is told of a tool: with its name where the rest says next to nothing."""
    told = phrase(index.tools[tool], config.shown_as, longest, index.manifest.text)
    return told if len(told) >= THIN else phrase(index.tools[tool], "parameters", longest, index.manifest.text)


def _file(drafts: Path, number: int) -> Path:
    return drafts / f"samples-{number:05d}.jsonl"


def keep(config: UtterancesConfig, index: Index, written: Mapping[ToolId, Sequence[str]]) -> Made:
    """What of it is of use, as a data set."""
    left_out: Counter[str] = Counter()
    names, said_by = index.exact_names(), defaultdict(set)
    kept: list[tuple[str, ToolId]] = []
    for tool, lines in written.items():
        for line in lines:
            text = _bare(line)
            reason = unfit(text, index.tools[tool], config, names, index.manifest.text)
            if reason:
                left_out[reason] += 1
                continue
            said_by[normalize_utterance(text)].add(tool)
            kept.append((text, tool))
    alone = [(text, tool) for text, tool in kept if len(said_by[normalize_utterance(text)]) == 1]
    left_out["said of several tools"] = len(kept) - len(alone)
    unique = list({normalize_utterance(text): (text, tool) for text, tool in reversed(alone)}.values())[::-1]
    left_out["said twice"] = len(alone) - len(unique)
    placed = _places(config, index, unique)
    found = [(place, text, tool) for place, (text, tool) in zip(placed, unique, strict=True) if place is not None]
    left_out["not found again"] = len(unique) - len(found)
    chosen: Counter[ToolId] = Counter()
    queries, gold = [], defaultdict[str, Gold](dict)
    for place, text, tool in sorted(found):
        if chosen[tool] == config.per_tool:
            left_out["enough of that tool"] += 1
            continue
        chosen[tool] += 1
        query = Query(query_id(text), text, {"from": "a model", "place": place})
        queries.append(query)
        gold[_split(config, text)][query.id] = frozenset({tool})
    _fill(gold)
    total = sum(map(len, written.values()))
    return Made(tuple(queries), dict(gold), len(written), total, {name: n for name, n in left_out.items() if n})


def _fill(gold: dict[str, Gold]) -> None:
    """A small set may leave a split empty: it gets one of the largest's, by a hash."""
    for split in ("test", "dev", "train"):
        largest = max(gold, key=lambda name: len(gold[name]), default=split)
        if not gold.get(split) and len(gold.get(largest, {})) > 1:
            query = min(gold[largest], key=stable_hash)
            gold[split] = {query: gold[largest].pop(query)}


def _bare(line: str) -> str:
    """What is said, where a model puts it in quotation marks: `A customer might ask, "…"`; else the line."""
    quoted = _QUOTED.search(clean(line))
    return quoted[1].strip() if quoted else clean(line).strip('"“”«» ')


def unfit(text: str, tool: Tool, config: UtterancesConfig, names: ExactNames, fields: Sequence[str]) -> str:
    """Why an utterance is not used; "": it is."""
    if len(text) < config.shortest:
        return "too short"
    if len(text) > config.longest:
        return "too long"
    if _ASSISTANT.match(text):
        return "nothing that a user says"
    if tool.id in names.find(text):
        return "names the tool"
    mine, its = _threes(text), _threes(document(tool, fields))
    if mine and len(mine & its) / len(mine) > config.copied:
        return "copied from the tool"
    return ""


def _threes(text: str) -> set[tuple[str, ...]]:
    found = tokens(text)
    return {tuple(found[place : place + 3]) for place in range(len(found) - 2)}


def _places(config: UtterancesConfig, index: Index, pairs: Sequence[tuple[str, ToolId]]) -> list[int | None]:
    """Where the retriever finds the tool of every utterance; None: not where it should."""
    if not config.found_in:
        return [0] * len(pairs)
    rankings = ToolSearch(index, config.retriever).retrieve([text for text, _ in pairs], config.found_in, "round trip")
    return [
        ranking.ids.index(tool) + 1 if tool in ranking.ids else None
        for ranking, (_, tool) in zip(rankings, pairs, strict=True)
    ]


def _split(config: UtterancesConfig, text: str) -> str:
    number = stable_hash(normalize_utterance(text))
    if number % config.test_one_in == 0:
        return "test"
    return "dev" if number // config.test_one_in % config.dev_one_in == 0 else "train"
