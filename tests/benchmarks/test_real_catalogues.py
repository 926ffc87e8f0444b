"""Requests to real catalogues: two even halves, and scores by any accepted tool."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from paths import ROOT

from retrievers.types import Ranking


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import real_catalogues

    yield real_catalogues
    for name in ("real_catalogues", "harness"):
        sys.modules.pop(name, None)


def test_the_requests_are_spread_evenly(benchmark: ModuleType) -> None:
    dev, test = (benchmark.read_requests(benchmark.REQUESTS, split) for split in ("dev", "test"))
    assert (len(dev), len(test)) == (25, 25)
    assert set(Counter(request.provider for request in dev + test).values()) == {5}
    assert all(request.tools for request in dev + test)


def test_any_accepted_tool_answers_a_request(benchmark: ModuleType) -> None:
    rows = ("1", "a", "dev", "x", ("t1", "t2")), ("2", "b", "dev", "y", ("t9",))
    rankings = [Ranking(("t2", "t1"), (2.0, 1.0)), Ranking(("t1", "t9"), (2.0, 1.0))]
    shares = benchmark.score([benchmark.Request(*row) for row in rows], rankings)
    assert shares["all"] == {"right first": 0.5, "in five": 1.0, "in ten": 1.0}
    assert benchmark.table(shares).splitlines()[-1] == "| all | 0.50 | 1.00 | 1.00 |"


def test_an_index_is_built_and_asked(benchmark: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tools = [
        {"name": "send_sms", "description": "Text a customer's phone."},
        {"name": "weather", "description": "Rain and sun."},
    ]
    (tmp_path / "tools.json").write_text(json.dumps(tools))
    request = {"id": "1", "provider": "phone", "split": "dev", "text": "text my customer", "tools": ["send_sms"]}
    (tmp_path / "requests.jsonl").write_text(json.dumps(request) + "\n")
    (tmp_path / "index.yaml").write_text("index: x\ncatalogue: y\nretrievers:\n  bm25: {kind: bm25}\n")
    flags = ["--config", "index.yaml", "--requests", "requests.jsonl", "--index", "runs"]
    paths = [str(tmp_path / part) if not part.startswith("--") else part for part in flags]
    benchmark.main([str(tmp_path / "tools.json"), *paths, "--text", "name,description"])
    assert "| phone | 1.00 | 1.00 | 1.00 |" in capsys.readouterr().out
