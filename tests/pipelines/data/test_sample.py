"""The data set that ships with the package is whole, and what the docs say of it is true."""

from __future__ import annotations

import json
import re
from collections import Counter

from pipelines.data.sample_data import sample_folder
from retrievers.types import Tool

FOLDER = sample_folder()


def rows(name: str) -> list[list[str]]:
    header, *lines = (FOLDER / name).read_text(encoding="utf-8").rstrip("\n").split("\n")
    assert header.startswith(("query-id\t", "scene-id\t"))
    return [line.split("\t") for line in lines]


QUERIES = {
    row["_id"]: row
    for row in map(json.loads, (FOLDER / "queries.jsonl").read_text(encoding="utf-8").rstrip("\n").split("\n"))
}
GOLD: dict[str, dict[str, set[str]]] = {}
for split in ("train", "dev", "test"):
    GOLD[split] = {}
    for query, tool, _ in rows(f"qrels/{split}.tsv"):
        GOLD[split].setdefault(query, set()).add(tool)


def test_the_catalogue_is_large_and_uneven(sample_tools: list[Tool]) -> None:
    assert len(sample_tools) >= 150
    assert len({tool.provider for tool in sample_tools}) >= 12
    assert sum(1 for tool in sample_tools if tool.parameters) > 150
    lengths = [len(tool.description.split()) for tool in sample_tools]
    assert min(lengths) <= 3
    assert max(lengths) >= 25


def test_every_query_has_one_to_four_known_gold_tools(sample_tools: list[Tool]) -> None:
    known = {tool.id for tool in sample_tools}
    golds = [gold for split in GOLD.values() for gold in split.values()]
    assert len(golds) >= 900
    assert all(1 <= len(gold) <= 4 and gold <= known for gold in golds)
    assert len(known - set().union(*golds)) == 0


def test_splits_share_no_query_and_no_text() -> None:
    ids = [set(split) for split in GOLD.values()]
    assert not ids[0] & ids[1]
    assert not ids[0] & ids[2]
    assert not ids[1] & ids[2]
    texts = Counter(re.sub(r"\W+", " ", row["text"].casefold()) for row in QUERIES.values())
    assert texts.most_common(1)[0][1] == 1


def test_people_speak_four_languages_and_sometimes_need_no_tool() -> None:
    languages = Counter(row["metadata"]["language"] for row in QUERIES.values())
    assert languages.keys() == {"en", "es", "zh", "de"}
    assert min(languages.values()) > 50
    labels = [label for split in GOLD for _, label in rows(f"labels/{split}.tsv")]
    assert labels.count("0") >= 200
    assert len(labels) == len(QUERIES)


def test_scenes_are_the_gold_sets() -> None:
    scenes: dict[str, set[str]] = {}
    for scene, tool in rows("scenes.tsv"):
        scenes.setdefault(scene, set()).add(tool)
    for split in GOLD.values():
        for query, gold in split.items():
            assert scenes[QUERIES[query]["metadata"]["scene"]] == gold


def test_no_opening_is_a_template() -> None:
    openings = Counter(" ".join(row["text"].casefold().split()[:3]) for row in QUERIES.values())
    assert openings.most_common(1)[0][1] < len(QUERIES) / 100
