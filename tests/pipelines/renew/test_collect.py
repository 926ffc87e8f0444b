"""A train set out of records: each utterance once, known tools only, nothing that is judged on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pipelines.data.dataset import load_dataset, stable_hash
from pipelines.data.dataset_writer import normalize_utterance, query_id, write_dataset
from pipelines.legal_names import LegalNames
from pipelines.renew.call_names import ToolNames
from pipelines.renew.collect import CollectedData, check_enough, collect
from pipelines.renew.settings import Sources
from retrievers.errors import BadInput
from retrievers.types import Parameter, Tool

TOOLS = {
    tool.id: tool
    for tool in (
        Tool("air/arrivals", "arrivals", "When planes land.", (Parameter("flight", "string", "number", True),)),
        Tool("sky/forecast", "v2/forecast", "Weather.", provider="Sky", category="Weather"),
        Tool("a/list", "list"),
        Tool("b/list", "list"),
    )
}


def gathered(
    tmp_path: Path, rows: list[tuple[str, list[str]]], fixed: tuple[str, ...] = (), **more: Any
) -> CollectedData:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"utterance": text, "tools": tools}) + "\n" for text, tools in rows))
    return collect(Sources(feedback=(str(path),), **more), TOOLS, {normalize_utterance(text) for text in fixed})


def test_each_utterance_stands_once_with_all_its_tools(tmp_path: Path) -> None:
    rows = [("When does BA12 land?", ["air/arrivals"]), ("when does  ba12 land?", ["sky/forecast", "gone/tool"])]
    found = gathered(tmp_path, [*rows, ("\x00 ", ["a/list"]), ("x" * 3000, ["a/list"]), ("hm", ["gone/tool"])])
    [query] = found.queries
    assert query == query_id("WHEN DOES BA12 LAND?")
    [(_, gold)] = [item for split in found.gold.values() for item in split.items()]
    assert gold == {"air/arrivals", "sky/forecast"}
    assert found.left_out == {"said before": 1, "empty": 1, "too long": 1, "no known tool": 1}
    assert found.unknown == {"gone/tool": 2}
    with pytest.raises(BadInput, match="too few"):
        check_enough(found)


def test_what_is_judged_on_and_what_a_pattern_finds_is_not_learned(tmp_path: Path) -> None:
    rows = [("Is it raining", ["sky/forecast"]), ("card 4111111111111111", ["a/list"]), ("when?", ["air/arrivals"])]
    found = gathered(tmp_path, rows, fixed=("is it  RAINING",), drop=(r"\d{16}",))
    assert [each.text for each in found.queries.values()] == ["when?"]
    assert found.left_out == {"in a fixed set": 1, "filtered": 1}


def test_dev_is_cut_by_a_hash_of_the_text_and_stays(tmp_path: Path) -> None:
    rows = [(f"utterance {number}", ["a/list"]) for number in range(400)]
    found = gathered(tmp_path, rows)
    dev = {found.queries[query].text for query in found.gold["dev"]}
    assert dev == {text for text, _ in rows if stable_hash(text) % 10 == 0}
    assert 20 < len(dev) < 60
    later = gathered(tmp_path, [("one more", ["b/list"]), *reversed(rows)])
    assert dev <= {later.queries[query].text for query in later.gold["dev"]}
    assert later.digest() != found.digest()
    assert gathered(tmp_path, rows[::-1]).digest() == found.digest()


def test_a_tool_that_everybody_clicks_does_not_fill_the_set(tmp_path: Path) -> None:
    rows = [(f"list {number}", ["a/list"]) for number in range(50)] + [("rain", ["sky/forecast"])]
    found = gathered(tmp_path, rows, max_per_tool=5)
    assert len(found.queries) == 6
    assert found.left_out["tools seen often enough"] == 45


def test_names_are_those_that_the_server_gave(tmp_path: Path) -> None:
    pairs = [(tool.id, tool.name) for tool in TOOLS.values()]
    names, legal = ToolNames(pairs), LegalNames(pairs, "", 64)
    for tool, name in pairs:
        assert names.find(tool) == [tool]
        assert names.find(legal.of(tool, name)) == [tool]
        assert names.find(f"mcp__server__{legal.of(tool, name)}") == [tool]
    assert names.find("v2/forecast") == names.find("v2_forecast") == ["sky/forecast"]
    assert names.find("list") == ["a/list", "b/list"]
    assert names.find("lists") == []
    assert gathered(tmp_path, [("which", ["list"])]).unknown == {"list (several tools)": 1}


def test_what_is_written_is_a_data_set(tmp_path: Path) -> None:
    found = gathered(tmp_path, [(f"utterance {number}", ["sky/forecast"]) for number in range(40)])
    write_dataset(tmp_path / "set", TOOLS.values(), found.queries.values(), found.gold, {"more.json": "{}"})
    data = load_dataset(str(tmp_path / "set"))
    assert {tool.id: tool for tool in data.tools} == TOOLS
    assert data.gold == {split: dict(gold) for split, gold in found.gold.items()}
    assert (tmp_path / "set" / "more.json").read_text() == "{}"
    with pytest.raises(BadInput, match="exists already"):
        write_dataset(tmp_path / "set", TOOLS.values(), [], {})


def test_data_sets_beside_are_learned_too_without_what_is_judged(tmp_path: Path) -> None:
    write_dataset(
        tmp_path / "old",
        [*TOOLS.values(), Tool("gone", "gone")],
        collect(Sources(feedback=(_rows(tmp_path),)), TOOLS | {"gone": Tool("gone", "gone")}, ()).queries.values(),
        {"train": {query_id("old one"): frozenset({"a/list"}), query_id("of gone"): frozenset({"gone"})}},
    )
    found = gathered(tmp_path, [("new one", ["b/list"])], datasets=(str(tmp_path / "old"),))
    assert {each.text for each in found.queries.values()} == {"new one", "old one"}
    assert found.fresh == 1


def _rows(tmp_path: Path) -> str:
    path = tmp_path / "old.jsonl"
    rows = [{"utterance": "old one", "tools": ["a/list"]}, {"utterance": "of gone", "tools": ["gone"]}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)
