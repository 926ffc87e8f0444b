"""`rewrite-eval attack`: attacks succeed without defences, hardly with them, and honest tools are still found."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from doubles import BM25_ONLY, plain_context

from pipelines.cli import main as cli
from pipelines.data.dataset import load_dataset
from pipelines.evaluate.attack_run import AttackScores
from pipelines.evaluate.attacks import ATTACKS, inject
from retrievers.index import Index, build
from retrievers.types import Tool


@pytest.fixture(scope="module")
def sample_index(sample_tools: list[Tool], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("attack") / "index"
    build(folder, sample_tools, BM25_ONLY, plain_context())
    return folder


def test_attacks_with_defences_off_and_on(
    sample_index: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = Index(sample_index, plain_context()).fingerprint
    config = tmp_path / "attack.yaml"
    config.write_text(
        f"output: {tmp_path}/run\ndata: bundled:sample\nindex: {sample_index}\nretrievers: [bm25]\nrounds: 2\n"
    )
    assert cli.evaluate(["attack", str(config)]) == 0
    found = json.loads((tmp_path / "run" / "metrics.json").read_text())["retrievers"]["bm25"]
    for name in ("flooding", "stuffing", "imitation"):
        each = found["attacks"][name]
        assert each["off"]["success"] >= 0.5, (name, each)
        assert each["on"]["success"] <= 0.1, (name, each)
    assert found["attacks"]["flooding"]["off"]["hidden"] == 1
    assert found["attacks"]["paraphrase"]["on"]["success"] <= found["attacks"]["paraphrase"]["off"]["success"] / 2
    assert found["recall"]["cost"] <= 0.02
    told = capsys.readouterr().out
    assert "bm25 flooding" in told
    assert "honest newcomers" in told
    assert Index(sample_index, plain_context()).fingerprint == before  # a copy was attacked


@pytest.mark.parametrize("attack", ATTACKS)
def test_an_attacker_keeps_to_his_budget_and_draws_the_same_targets(attack: str) -> None:
    data = load_dataset("bundled:sample")
    one, same, other = (inject(attack, data, "test", 10, salt) for salt in ("a", "a", "b"))
    assert one == same
    assert one.targets != other.targets
    assert 0 < len(one.tools) <= 10
    assert {tool.id for tool in one.tools}.isdisjoint(tool.id for tool in data.tools)
    assert set(one.targets) <= data.gold["test"].keys()


def test_what_counts_as_success() -> None:
    gold, bad = frozenset({"g", "h"}), {"x", "y"}
    cases = {
        ("x", "g"): (1, 1, 0),  # an injected tool stands first
        ("g", "x"): (0, 1, 0),  # seen, and nothing lost
        ("a", "x"): (1, 1, 0),  # the needed tool was there before
        ("x", "y"): (1, 1, 1),
        ("g", "a"): (0, 0, 0),
    }
    for shown, expected in cases.items():
        figures = AttackScores()
        figures.add(shown, ("g", "a"), gold, bad)
        assert (figures.success, figures.seen, figures.hidden) == expected, shown


def test_a_wrong_config_is_one_sentence(sample_index: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "attack.yaml"
    base = f"output: x\ndata: bundled:sample\nindex: {sample_index}\nretrievers: [bm25]\n"
    for wrong, told in (("attacks: [phishing]", "phishing"), ("rate: 2", "rate"), ("trust: {default: new}", "tiers")):
        config.write_text(base + wrong)
        assert cli.evaluate(["attack", str(config)]) == 2
        assert told in capsys.readouterr().err
