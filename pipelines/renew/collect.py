"""Makes a data set of the records: each utterance once, only known tools, dev split by a hash of the text."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pipelines.data.dataset import Gold, Query, load_dataset, stable_hash
from pipelines.data.dataset_writer import normalize_utterance, query_id
from pipelines.renew.call_names import ToolNames
from pipelines.renew.settings import Sources
from pipelines.renew.sources import FeedbackRecord, read_records
from retrievers.errors import BadInput
from retrievers.text import clean
from retrievers.types import Tool, ToolId

MAX_UNKNOWN = 50
"""Unknown names that are recorded, the most frequent ones."""
MAX_CHARACTERS = 2_000
"""Longer utterances are left out."""
DEV_ONE_IN = 10
"""One utterance in this many is dev."""


@dataclass(frozen=True, slots=True)
class CollectedData:
    """Training data of a round."""

    queries: Mapping[str, Query]
    gold: Mapping[str, Gold]
    """train and dev"""
    fresh: int
    """Utterances from feedback and traces; the others come from data sets."""
    sources: Mapping[str, int]
    """Records by source."""
    left_out: Mapping[str, int]
    """Records that were not used, by reason."""
    unknown: Mapping[str, int]
    """Names that no tool of the catalogue has, or several, with the number of calls."""

    def to_json(self) -> dict[str, Any]:
        """Content of collected.json."""
        return {
            "queries": {split: len(gold) for split, gold in self.gold.items()},
            "fresh": self.fresh,
            "records": dict(self.sources),
            "left_out": {reason: count for reason, count in self.left_out.items() if count},
            "unknown_tools": dict(self.unknown),
            "digest": self.digest(),
        }

    def digest(self) -> str:
        """Hash of the examples, independent of their order."""
        rows = [[split, query, sorted(tools)] for split, gold in self.gold.items() for query, tools in gold.items()]
        return hashlib.sha256(json.dumps(sorted(rows)).encode()).hexdigest()[:16]


@dataclass(slots=True)
class _Examples:
    """Utterances with their tools and splits."""

    queries: dict[str, Query] = field(default_factory=dict)
    gold: dict[str, set[ToolId]] = field(default_factory=dict)
    split: dict[str, str] = field(default_factory=dict)
    left_out: Counter[str] = field(default_factory=Counter)

    def add(self, text: str, tools: Iterable[ToolId], split: str, metadata: Mapping[str, Any]) -> None:
        """Add an utterance, or more tools to a known one."""
        query = query_id(text)
        if query in self.queries:
            self.left_out["said before"] += 1
        else:
            self.queries[query] = Query(query, text, metadata)
            self.split[query] = split
        self.gold.setdefault(query, set()).update(tools)


def collect(sources: Sources, tools: Mapping[ToolId, Tool], fixed: Collection[str]) -> CollectedData:
    """Collect the training data. `fixed`: normalized utterances of the fixed sets, which must not be learned."""
    examples, unknown, read = _Examples(), Counter[str](), Counter[str]()
    names = ToolNames((tool.id, tool.name) for tool in tools.values())
    for record in read_records(sources, examples.left_out):
        read[record.source] += 1
        text = clean(record.utterance)
        if reason := _refusal(text, sources, fixed):
            examples.left_out[reason] += 1
        elif not (known := _known_tools(record, names, unknown)):
            examples.left_out["no known tool"] += 1
        else:
            split = "dev" if stable_hash(normalize_utterance(text)) % DEV_ONE_IN == 0 else "train"
            examples.add(text, known, split, {"from": record.source})
    _limit_per_tool(examples, sources.max_per_tool)
    fresh = len(examples.queries)
    for reference in sources.datasets:
        _add_dataset(examples, reference, tools, fixed)
    _fill_splits(examples)
    splits = {
        name: {
            query: frozenset(examples.gold[query])
            for query in sorted(examples.queries)
            if examples.split[query] == name
        }
        for name in ("train", "dev")
    }
    return CollectedData(
        examples.queries, splits, fresh, read, examples.left_out, dict(unknown.most_common(MAX_UNKNOWN))
    )


def _refusal(text: str, sources: Sources, fixed: Collection[str]) -> str:
    """The reason to leave an utterance out; "": there is none."""
    if not text:
        return "empty"
    if len(text) > MAX_CHARACTERS:
        return "too long"
    if any(re.search(pattern, text) for pattern in sources.drop):
        return "filtered"
    return "in a fixed set" if normalize_utterance(text) in fixed else ""


def _known_tools(record: FeedbackRecord, names: ToolNames, unknown: Counter[str]) -> list[ToolId]:
    known = []
    for name in dict.fromkeys(record.tools):
        matches = names.find(name)
        if len(matches) == 1:
            known.append(matches[0])
        else:
            unknown[f"{name} (several tools)" if matches else name] += 1
    return known


def _limit_per_tool(examples: _Examples, limit: int) -> None:
    """Drop utterances all of whose tools have `limit` others, in the order of a hash."""
    counts: Counter[ToolId] = Counter()
    for query in sorted(examples.queries, key=stable_hash) if limit else ():
        if all(counts[tool] >= limit for tool in examples.gold[query]):
            del examples.queries[query], examples.gold[query], examples.split[query]
            examples.left_out["tools seen often enough"] += 1
        else:
            counts.update(examples.gold[query])


def _add_dataset(examples: _Examples, reference: str, tools: Mapping[ToolId, Tool], fixed: Collection[str]) -> None:
    """Add the training and dev queries of a data set whose tools are in the catalogue."""
    data = load_dataset(reference)
    for split in ("train", "dev"):
        for query, gold in sorted(data.gold.get(split, {}).items()):
            text = clean(data.queries[query].text)
            if not text or normalize_utterance(text) in fixed or not all(tool in tools for tool in gold):
                examples.left_out["data sets: in a fixed set, or of tools that are gone"] += 1
            else:
                examples.add(text, gold, split, {"from": data.name})


def _fill_splits(examples: _Examples) -> None:
    """Move one example where train or dev would be empty."""
    for empty, other in (("dev", "train"), ("train", "dev")):
        queries = sorted((query for query in examples.queries if examples.split[query] == other), key=stable_hash)
        if empty not in examples.split.values() and len(queries) > 1:
            examples.split[queries[0]] = empty


def check_enough(collected: CollectedData) -> None:
    """Refuse data without train or dev queries."""
    if not all(collected.gold.get(split) for split in ("train", "dev")):
        raise BadInput(f"{collected.fresh} utterances are too few to train on and to select by; collect more")
