"""Records -> a data set: each utterance once, its tools known to the catalogue, dev cut by a hash of the text."""

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
from pipelines.renew.sources import Record, read_records
from retrievers.errors import BadInput
from retrievers.text import clean
from retrievers.types import Tool, ToolId

SHOWN = 50
"""Unknown names that are written down, the most frequent ones."""


@dataclass(frozen=True, slots=True)
class Collected:
    """What a round learns from."""

    queries: Mapping[str, Query]
    gold: Mapping[str, Gold]
    """train and dev"""
    fresh: int
    """Utterances from feedback and traces; the others were in the data sets beside them."""
    sources: Mapping[str, int]
    """Records read, by source."""
    left_out: Mapping[str, int]
    """What was not used, by the reason."""
    unknown: Mapping[str, int]
    """Names that no tool of the catalogue has, or several, and how often they were called."""

    def facts(self) -> dict[str, Any]:
        """collected.json."""
        return {
            "queries": {split: len(gold) for split, gold in self.gold.items()},
            "fresh": self.fresh,
            "records": dict(self.sources),
            "left_out": {reason: count for reason, count in self.left_out.items() if count},
            "unknown_tools": dict(self.unknown),
            "digest": self.digest(),
        }

    def digest(self) -> str:
        """The same for the same lessons, whatever order they came in."""
        rows = [[split, query, sorted(tools)] for split, gold in self.gold.items() for query, tools in gold.items()]
        return hashlib.sha256(json.dumps(sorted(rows)).encode()).hexdigest()[:16]


@dataclass(slots=True)
class _Heap:
    """Utterances on their way into the set."""

    queries: dict[str, Query] = field(default_factory=dict)
    gold: dict[str, set[ToolId]] = field(default_factory=dict)
    split: dict[str, str] = field(default_factory=dict)
    left_out: Counter[str] = field(default_factory=Counter)

    def put(self, text: str, tools: Iterable[ToolId], split: str, metadata: Mapping[str, Any]) -> None:
        """One more; what was said before gets its tools, and stays where it is."""
        query = query_id(text)
        if query in self.queries:
            self.left_out["said before"] += 1
        else:
            self.queries[query] = Query(query, text, metadata)
            self.split[query] = split
        self.gold.setdefault(query, set()).update(tools)


def collect(sources: Sources, tools: Mapping[ToolId, Tool], fixed: Collection[str]) -> Collected:
    """Everything to learn from. `fixed`: normalized utterances of the fixed test sets, which must not be learned."""
    heap, names, unknown = _Heap(), ToolNames((tool.id, tool.name) for tool in tools.values()), Counter[str]()
    read: Counter[str] = Counter()
    for record in read_records(sources, heap.left_out):
        read[record.source] += 1
        text = clean(record.utterance)
        reason = _refused(text, sources, fixed)
        if reason:
            heap.left_out[reason] += 1
            continue
        known = _known(record, names, unknown)
        if not known:
            heap.left_out["no known tool"] += 1
            continue
        split = "dev" if stable_hash(normalize_utterance(text)) % sources.dev_one_in == 0 else "train"
        heap.put(text, known, split, {"from": record.source})
    _thin(heap, sources.most_per_tool)
    fresh = len(heap.queries)
    for reference in sources.beside:
        _add_beside(heap, reference, tools, fixed)
    _keep_some_dev(heap)
    splits = {
        name: {query: frozenset(heap.gold[query]) for query in sorted(heap.queries) if heap.split[query] == name}
        for name in ("train", "dev")
    }
    return Collected(heap.queries, splits, fresh, read, heap.left_out, dict(unknown.most_common(SHOWN)))


def _refused(text: str, sources: Sources, fixed: Collection[str]) -> str:
    if not text:
        return "empty"
    if len(text) > sources.longest:
        return "too long"
    if any(re.search(pattern, text) for pattern in sources.drop):
        return "filtered"
    return "in a fixed set" if normalize_utterance(text) in fixed else ""


def _known(record: Record, names: ToolNames, unknown: Counter[str]) -> list[ToolId]:
    known = []
    for name in dict.fromkeys(record.tools):
        found = names.find(name)
        if len(found) == 1:
            known.append(found[0])
        else:
            unknown[f"{name} (several tools)" if found else name] += 1
    return known


def _thin(heap: _Heap, most: int) -> None:
    """Leaves out utterances all of whose tools have been seen often enough; which ones, a hash says."""
    if not most:
        return
    seen: Counter[ToolId] = Counter()
    for query in sorted(heap.queries, key=stable_hash):
        if all(seen[tool] >= most for tool in heap.gold[query]):
            for each in (heap.queries, heap.gold, heap.split):
                del each[query]
            heap.left_out["tools seen often enough"] += 1
        else:
            seen.update(heap.gold[query])


def _add_beside(heap: _Heap, reference: str, tools: Mapping[ToolId, Tool], fixed: Collection[str]) -> None:
    """The training and dev queries of a data set, as far as its tools are in the catalogue."""
    data = load_dataset(reference)
    for split in ("train", "dev"):
        for query, gold in sorted(data.gold.get(split, {}).items()):
            text = clean(data.queries[query].text)
            if not text or normalize_utterance(text) in fixed or not all(tool in tools for tool in gold):
                heap.left_out["beside: in a fixed set, or of tools that are gone"] += 1
            else:
                heap.put(text, gold, split, {"from": data.name})


def _keep_some_dev(heap: _Heap) -> None:
    """Training wants both splits, however few there are."""
    for wanted, other in (("dev", "train"), ("train", "dev")):
        there = sorted((query for query in heap.queries if heap.split[query] == other), key=stable_hash)
        if wanted not in heap.split.values() and len(there) > 1:
            heap.split[there[0]] = wanted


def check_enough(collected: Collected) -> None:
    """Refuses to train on nothing."""
    if not all(collected.gold.get(split) for split in ("train", "dev")):
        raise BadInput(f"{collected.fresh} utterances are too few to train on and to judge by; collect more")
