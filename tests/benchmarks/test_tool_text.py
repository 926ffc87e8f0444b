"""The benchmark of tool texts ranks as an index does, scores fields as their formula says, and reads public texts."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from paths import ROOT

from pipelines.data.sample_data import sample_folder
from retrievers.index import Index, build
from retrievers.kind import Context
from retrievers.settings import BM25Settings
from retrievers.text import tokens
from retrievers.types import Parameter, Tool

NAMES = ("tool_text", "tool_text_data", "tool_text_forms", "harness")


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import tool_text

    yield tool_text
    for name in NAMES:
        sys.modules.pop(name, None)


@pytest.fixture
def utterances() -> list[str]:
    lines = (sample_folder() / "queries.jsonl").read_text(encoding="utf-8").split("\n")
    return [json.loads(line)["text"] for line in lines[:40]]


def test_ranks_are_those_of_an_index(
    benchmark: ModuleType, sample_tools: list[Tool], utterances: list[str], context: Context, tmp_path: Path
) -> None:
    build(tmp_path / "index", sample_tools, {"bm25": BM25Settings(names=0)}, context)
    expected = Index(tmp_path / "index", context).retriever("bm25").search(utterances, 10)
    tools = tuple(sorted(sample_tools, key=lambda tool: tool.id))
    trial = benchmark.Trial("sample", tools, tuple(utterances), tuple(frozenset[str]() for _ in utterances))
    scores = dict(benchmark.lexical_scores(trial, "cpu"))["bm25 default"]
    best, order = benchmark._top(benchmark.listed(scores, 0.0, 9), 10)
    for ranking, values, row in zip(expected, best.tolist(), order.tolist(), strict=True):
        listed = [tools[index].id for value, index in zip(values, row, strict=True) if value > 0]
        assert tuple(listed) == ranking.ids


@pytest.mark.parametrize("together", [False, True])
def test_scores_of_fields_are_those_of_the_formula(
    benchmark: ModuleType, sample_tools: list[Tool], utterances: list[str], together: bool
) -> None:
    forms = sys.modules["tool_text_forms"]
    tools, weights = sample_tools[:50], forms.FieldWeights(name=2, parameter_texts=0.5, provider=3, together=together)
    vocabulary = forms.Words(utterances)
    scores = forms.field_scores(vocabulary, forms.count_fields(vocabulary, tools), weights)
    documents = [{field: tokens(text) for field, text in forms.field_texts(tool).items()} for tool in tools]
    for row, utterance in enumerate(utterances[:10]):
        expected = [brute_force(tokens(utterance), document, documents, weights) for document in documents]
        assert scores[row] == pytest.approx(expected)


def brute_force(
    query: list[str], document: dict[str, list[str]], documents: list[dict[str, list[str]]], weights: object
) -> float:
    """BM25F of one tool, word by word."""
    score, b, k1 = 0.0, 0.75, 1.5
    weight = {field: getattr(weights, field) for field in document}

    def length(one: dict[str, list[str]], field: str) -> float:
        return sum(weight[name] * len(one[name]) for name in one) if weights.together else len(one[field])  # type: ignore[attr-defined]

    for word in query:
        total = 0.0
        for field, present in document.items():
            lengths = [size for one in documents if (size := length(one, field))]
            mean = float(np.mean(lengths)) if lengths else 1.0
            count = weight[field] * present.count(word)
            total += count / (1 - b + b * length(document, field) / mean) if count else 0.0
        frequency = sum(any(word in present for present in one.values()) for one in documents)
        score += math.log((len(documents) + 1) / max(frequency, 1)) * total * (k1 + 1) / (total + k1)
    return score


def test_parameters_are_taken_out_of_public_texts(benchmark: ModuleType) -> None:
    data = sys.modules["tool_text_data"]
    text = "Find a bus.\nParameters: from (string, required): City; or stop; day (date)\nCategory: Travel"
    tool = data.structured(Tool("1", "Buses: FindBus", text))
    assert tool == Tool(
        id="1",
        name="FindBus",
        description="Find a bus.",
        parameters=(Parameter("from", "string", "City; or stop", required=True), Parameter("day", "date")),
        category="Travel",
        provider="Buses",
    )
    [parameter] = data.parse_parameters("report_id: (string) The ID of the report.")
    assert (parameter.name, parameter.type, parameter.description) == ("report_id", "string", "The ID of the report.")
