"""Let a model write utterances; leave out those that are copied, name their tool, or do not lead back to it.

The round trip keeps what the retriever can find already, so that figures on such a set flatter that retriever. It
keeps nonsense out of training; utterances of real users show real quality (`rewrite-train renew`).
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
from pipelines.train.run_folder import begin_samples
from pipelines.train.utterances.settings import UtterancesConfig
from retrievers.fusion import ExactNames
from retrievers.index import Index
from retrievers.kind import Context
from retrievers.text import clean, document, tokens
from retrievers.types import Tool, ToolId
from rewrite.types import RewriteRequest

SHOWN_AS = "description"
"""Phrasing in which a tool is shown to the model."""
THIN = 24
"""A shorter phrasing is shown with the tool's name and parameters instead."""
MIN_CHARACTERS, MAX_CHARACTERS = 12, 300
MAX_COPIED = 0.5
"""Share of its word trigrams that an utterance may take from the tool's text."""
_QUOTED = re.compile(r'["“«]\s*([^"“”«»]{8,})["”»]')
_ASSISTANT = re.compile(
    r"(i'?m sorry|i am sorry|sorry,|as an? (ai|assistant)|i'?m an? (ai|assistant)|(a|the) (customer|person|user)\b|"
    r"sure[,!]|here('?s| is| are)\b|tool:|service:)",
    re.IGNORECASE,
)
CHUNK = 32
"""Tools per draft file; a killed run loses at most this many."""


@dataclass(frozen=True, slots=True)
class SyntheticUtterances:
    """A data set of synthetic utterances."""

    queries: tuple[Query, ...]
    gold: Mapping[str, Gold]
    tools: int
    """Tools that the model wrote for."""
    written: int
    """Utterances before filtering."""
    left_out: Mapping[str, int]

    @property
    def served(self) -> int:
        """Tools with at least one utterance."""
        return len({tool for gold in self.gold.values() for tools in gold.values() for tool in tools})


def make_utterances(config: UtterancesConfig, index: Index, context: Context, drafts: Path) -> SyntheticUtterances:
    """Write for every tool, chunk by chunk into `drafts`, then filter. A killed run continues with its drafts."""
    ids = sorted(index.tools)
    if config.max_tools:
        ids = sorted(ids, key=lambda tool: stable_hash(f"{config.seed}/{tool}"))[: config.max_tools]
    return filter_utterances(config, index, write_drafts(config, index, ids, context, drafts))


def write_drafts(
    config: UtterancesConfig, index: Index, ids: Sequence[ToolId], context: Context, drafts: Path
) -> dict[ToolId, list[str]]:
    """The utterances that the model writes, by tool."""
    begin_samples(drafts, config)
    chunks = [ids[start : start + CHUNK] for start in range(0, len(ids), CHUNK)]
    missing = [number for number in range(len(chunks)) if not _file(drafts, number).is_file()]
    if missing:
        settings = config.writer
        parts = find_parts(settings)
        writer = load_rewriter(settings, parts, context.device)
        max_characters = max(300, 4 * parts.template.max_characters)
        for number in tqdm(missing, desc="writing", disable=not context.show_progress):
            requests = [RewriteRequest(_describe(index, tool, max_characters)) for tool in chunks[number]]
            sampling = replace(settings.sampling, answers=config.draws, seed=settings.sampling.seed + number)
            samples = writer.sample(requests, sampling)
            lines = {
                tool: list(dict.fromkeys(line for answer in answers if answer.finished for line in answer.lines))
                for tool, answers in zip(chunks[number], samples, strict=True)
            }
            rows = [json.dumps({"tool": tool, "lines": texts}, ensure_ascii=False) for tool, texts in lines.items()]
            write_files(drafts, {_file(drafts, number).name: "".join(f"{row}\n" for row in rows)})
    rows = [line for n in range(len(chunks)) for line in _file(drafts, n).read_text(encoding="utf-8").split("\n")]
    return {row["tool"]: row["lines"] for row in map(json.loads, filter(None, rows))}


def _describe(index: Index, tool: ToolId, max_characters: int) -> str:
    text = phrase(index.tools[tool], SHOWN_AS, max_characters, index.manifest.text)
    return text if len(text) >= THIN else phrase(index.tools[tool], "parameters", max_characters, index.manifest.text)


def _file(drafts: Path, number: int) -> Path:
    return drafts / f"samples-{number:05d}.jsonl"


def filter_utterances(
    config: UtterancesConfig, index: Index, written: Mapping[ToolId, Sequence[str]]
) -> SyntheticUtterances:
    """Keep the usable utterances, as a data set."""
    left_out: Counter[str] = Counter()
    names, tools_by_text = index.exact_names(), defaultdict(set)
    kept: list[tuple[str, ToolId]] = []
    for tool, lines in written.items():
        for line in lines:
            text = _unquote(line)
            reason = rejection_reason(text, index.tools[tool], names, index.manifest.text)
            if reason:
                left_out[reason] += 1
                continue
            tools_by_text[normalize_utterance(text)].add(tool)
            kept.append((text, tool))
    alone = [(text, tool) for text, tool in kept if len(tools_by_text[normalize_utterance(text)]) == 1]
    left_out["said of several tools"] = len(kept) - len(alone)
    unique = list({normalize_utterance(text): (text, tool) for text, tool in reversed(alone)}.values())[::-1]
    left_out["said twice"] = len(alone) - len(unique)
    ranks = _find_ranks(config, index, unique)
    ranked = [(rank, text, tool) for rank, (text, tool) in zip(ranks, unique, strict=True) if rank is not None]
    left_out["not found again"] = len(unique) - len(ranked)
    chosen: Counter[ToolId] = Counter()
    queries, gold = [], defaultdict[str, Gold](dict)
    for rank, text, tool in sorted(ranked):
        if chosen[tool] == config.max_per_tool:
            left_out["enough of that tool"] += 1
            continue
        chosen[tool] += 1
        query = Query(query_id(text), text, {"from": "a model", "rank": rank})
        queries.append(query)
        gold[_split(config, text)][query.id] = frozenset({tool})
    _fill_empty_splits(gold)
    total = sum(map(len, written.values()))
    return SyntheticUtterances(
        tuple(queries), dict(gold), len(written), total, {name: n for name, n in left_out.items() if n}
    )


def _fill_empty_splits(gold: dict[str, Gold]) -> None:
    """Move one query of the largest split to each empty one, by a hash."""
    for split in ("test", "dev", "train"):
        largest = max(gold, key=lambda name: len(gold[name]), default=split)
        if not gold.get(split) and len(gold.get(largest, {})) > 1:
            query = min(gold[largest], key=stable_hash)
            gold[split] = {query: gold[largest].pop(query)}


def _unquote(line: str) -> str:
    """The quoted part, if the model writes `A customer might ask, "…"`; else the line."""
    quoted = _QUOTED.search(clean(line))
    return quoted[1].strip() if quoted else clean(line).strip('"“”«» ')


def rejection_reason(text: str, tool: Tool, names: ExactNames, fields: Sequence[str]) -> str:
    """The reason to leave an utterance out; "" if it is usable."""
    if len(text) < MIN_CHARACTERS:
        return "too short"
    if len(text) > MAX_CHARACTERS:
        return "too long"
    if _ASSISTANT.match(text):
        return "nothing that a user says"
    if tool.id in names.find(text):
        return "names the tool"
    own, copied = _trigrams(text), _trigrams(document(tool, fields))
    if own and len(own & copied) / len(own) > MAX_COPIED:
        return "copied from the tool"
    return ""


def _trigrams(text: str) -> set[tuple[str, ...]]:
    words = tokens(text)
    return {tuple(words[start : start + 3]) for start in range(len(words) - 2)}


def _find_ranks(config: UtterancesConfig, index: Index, pairs: Sequence[tuple[str, ToolId]]) -> list[int | None]:
    """The rank at which the retriever finds the tool of every utterance; None: beyond `max_rank`."""
    if not config.max_rank:
        return [0] * len(pairs)
    rankings = ToolSearch(index, config.retriever).retrieve([text for text, _ in pairs], config.max_rank, "round trip")
    return [
        ranking.ids.index(tool) + 1 if tool in ranking.ids else None
        for ranking, (_, tool) in zip(rankings, pairs, strict=True)
    ]


def _split(config: UtterancesConfig, text: str) -> str:
    number = stable_hash(normalize_utterance(text))
    if number % config.test_one_in == 0:
        return "test"
    return "dev" if number // config.test_one_in % config.dev_one_in == 0 else "train"
