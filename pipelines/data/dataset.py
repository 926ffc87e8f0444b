"""Data set folders in BEIR layout: tools, queries, gold; dev cut from train where it is missing."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pipelines.data.sample_data import SAMPLE, sample_folder
from retrievers.catalogue import read_catalogue
from retrievers.errors import BadInput
from retrievers.types import Tool, ToolId

Gold = dict[str, frozenset[ToolId]]
SPLITS = ("train", "dev", "test")
DEV_SHARE = 10
"""One training query in this many becomes dev where a data set has none."""


@dataclass(frozen=True, slots=True)
class Query:
    """A user's utterance."""

    id: str
    text: str
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DataSet:
    """Tools, queries and, for every split, the tools each query needs."""

    name: str
    tools: tuple[Tool, ...]
    queries: Mapping[str, Query]
    gold: Mapping[str, Gold]
    report: Mapping[str, int] = field(default_factory=dict)
    """Counts of queries that a protocol dropped or moved."""

    def split(self, name: str) -> Gold:
        """The gold of one split, which must not be empty."""
        if name not in SPLITS:
            raise BadInput(f"no split {name!r}; splits are {', '.join(SPLITS)}")
        gold = self.gold.get(name, {})
        if not gold:
            raise BadInput(f"the data set {self.name} has no queries in its {name} split")
        return gold


def load_dataset(reference: str) -> DataSet:
    """Load a data set folder, or `bundled:sample`."""
    folder = sample_folder() if reference == SAMPLE else Path(reference)
    if not folder.is_dir():
        raise BadInput(f"no data set folder {folder}; docs/data.md lists the sources of public ones")
    tools = tuple(read_catalogue(folder, "beir"))
    queries = read_queries(folder / "queries.jsonl")
    known = {tool.id for tool in tools}
    gold = {}
    for split in SPLITS:
        path = folder / "qrels" / f"{split}.tsv"
        if path.exists():
            gold[split] = _read_qrels(path, queries, known)
    if not gold:
        raise BadInput(f"{folder} has no qrels; a data set has qrels/train.tsv, dev.tsv or test.tsv")
    _refuse_overlap(folder, gold)
    if "dev" not in gold and "train" in gold:
        gold["train"], gold["dev"] = _cut_dev(gold["train"])
    return DataSet(folder.name, tools, queries, gold)


def limit_queries(data: DataSet, limit: int, seed: int) -> DataSet:
    """The data set with at most `limit` queries per split, drawn by a hash."""
    gold = {
        split: {
            query: queries[query] for query in sorted(queries, key=lambda query: stable_hash(f"{seed}/{query}"))[:limit]
        }
        for split, queries in data.gold.items()
    }
    return replace(data, gold=gold)


def stable_hash(text: str) -> int:
    """A number that depends on the text alone, for splits that are the same on every machine."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def _cut_dev(train: Gold) -> tuple[Gold, Gold]:
    dev = {query: tools for query, tools in train.items() if stable_hash(query) % DEV_SHARE == 0}
    return {query: tools for query, tools in train.items() if query not in dev}, dev


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Non-empty lines with their numbers."""
    try:
        text = path.read_bytes().decode("utf-8")
    except FileNotFoundError as error:
        raise BadInput(f"{path} is missing") from error
    except UnicodeDecodeError as error:
        raise BadInput(f"{path}: not UTF-8 at byte {error.start}") from error
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            yield number, line.rstrip("\r")


def read_queries(path: Path) -> dict[str, Query]:
    """The queries of a file, by id."""
    queries: dict[str, Query] = {}
    for number, line in read_lines(path):
        try:
            row = json.loads(line)
            query = Query(row["_id"], row["text"], row.get("metadata") or {})
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise BadInput(f"{path}:{number}: a query is a JSON object with _id and text") from error
        if not isinstance(query.id, str) or not isinstance(query.text, str) or not query.text.strip():
            raise BadInput(f"{path}:{number}: _id and text of a query must be text, and not empty")
        if not isinstance(query.metadata, dict):
            raise BadInput(f"{path}:{number}: the metadata of a query must be an object")
        query = replace(query, id=_whole(query.id), text=_whole(query.text))
        if query.id in queries:
            raise BadInput(f"{path}:{number}: duplicate query id {query.id!r}")
        queries[query.id] = query
    return queries


def _whole(text: str) -> str:
    """Text without lone surrogates, which JSON may hold but UTF-8 cannot."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _read_qrels(path: Path, queries: Mapping[str, Query], tools: set[ToolId]) -> Gold:
    gold: dict[str, set[ToolId]] = {}
    seen: set[str] = set()
    for number, line in read_lines(path):
        cells = line.split("\t")
        if number == 1 and cells[0] == "query-id":
            continue
        if len(cells) != 3 or not re.fullmatch(r"-?[0-9]+", cells[2].strip()):
            raise BadInput(f"{path}:{number}: a row is query-id, corpus-id and a whole score, separated by tabs")
        query, tool, score = cells
        if query not in queries:
            raise BadInput(f"{path}:{number}: the query {query!r} is not in queries.jsonl")
        if tool not in tools:
            raise BadInput(f"{path}:{number}: the gold tool {tool!r} is not in the corpus")
        seen.add(query)
        if int(score) > 0:
            gold.setdefault(query, set()).add(tool)
    bare = sorted(seen - gold.keys())
    if bare:
        raise BadInput(f"{path}: the query {bare[0]!r} has no gold tool; remove its rows or give it one")
    return {query: frozenset(needed) for query, needed in gold.items()}


def _refuse_overlap(folder: Path, gold: Mapping[str, Gold]) -> None:
    for left in gold:
        for right in gold:
            both = sorted(gold[left].keys() & gold[right].keys())
            if left < right and both:
                raise BadInput(f"{folder}: the query {both[0]!r} is in both {left} and {right}")
