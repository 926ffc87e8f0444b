"""Trouble during an alignment ends it in one sentence, with an exit code and a checkpoint to continue from."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tiny_runs import PLAIN, align_config, make_targets

from pipelines.cli import main as cli
from rewrite.align.groups import trainers as group_trainers
from rewrite.errors import BackendDown
from rewrite.sft import checkpoints

WILD = ["method=full", "learning_rate=1e30", "warmup=0", "schedule=constant", "evaluations=4"]
SAMPLES = {"answers": 3, "max_tokens": 6, "chunk_size": 3}
KINDS: dict[str, dict[str, Any]] = {
    "dpo": {"kind": "dpo", "samples": SAMPLES, "pairing": {"margin": 0.001}},
    "best-of-n": {"kind": "best-of-n", "samples": SAMPLES, "margin": 0.0},
    "grpo": {"kind": "grpo", "answers": 2, "max_tokens": 5},
    "rloo": {"kind": "rloo", "answers": 2, "max_tokens": 5},
    "ppo": {"kind": "ppo", "max_tokens": 5, "minibatch_size": 2, "passes": 1},
}


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Path:
    return make_targets(tmp_path_factory.mktemp("trouble"), PLAIN)


@pytest.fixture(scope="module")
def start(targets: Path, untied_lm: Path) -> dict[str, Any]:
    return {"base": str(untied_lm), "template": str(targets / "template.yaml")}


def ended(capsys: pytest.CaptureFixture[str], code: int, *words: object) -> str:
    """The one sentence with which a command ends."""
    capsys.readouterr()
    assert cli.train([*map(str, words), "--device", "cpu"]) == code
    error = capsys.readouterr().err.strip()
    assert "Traceback" not in error
    last = error.splitlines()[-1]
    assert last.startswith("rewrite-train: ")
    return last


@pytest.mark.parametrize("algo", KINDS.values(), ids=KINDS)
def test_a_loss_that_is_no_number_ends_the_run_with_its_last_checkpoint(
    targets: Path, start: dict[str, Any], tmp_path: Path, algo: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    config_path = align_config(targets, start, tmp_path / "run", algo, queries=4, probe_queries=2)
    wild = [word for change in WILD for word in ("--set", f"training.{change}")]
    output = ended(capsys, 2, "align", config_path, *wild)
    assert "became" in output
    assert "last good checkpoint kept; start it again in another output with a lower learning_rate" in output
    # Best of n judges its loss on dev before it saves, so that it has found out after the first step.
    assert (checkpoints.last(tmp_path / "run" / "checkpoints") is None) == (algo["kind"] == "best-of-n")
    assert not (tmp_path / "run" / "rewriter").exists()


@pytest.mark.parametrize("name", ["best-of-n", "ppo"])
def test_answers_that_cannot_be_read_stop_it_before_training(
    targets: Path, untied_lm: Path, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    strict = make_targets(tmp_path / "strict")
    start = {"base": str(untied_lm), "template": str(strict / "template.yaml")}
    output = ended(capsys, 2, "align", align_config(strict, start, tmp_path / "run", KINDS[name]))
    assert "the majority of answers cannot be parsed (" in output
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_trls_client_of_a_server_is_patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_trainers, "retry_server", partial(group_trainers.retry_server, wait=0.0))

    class Client:
        tries = 0

        def generate(self, prompts: list[str], n: int) -> list[str]:
            self.tries += 1
            if self.tries < 3:
                raise ConnectionError("refused")
            return prompts * n

    client = Client()
    group_trainers.retry_generation(client, "http://here")
    assert client.generate(["one"], n=2) == ["one", "one"]
    client.tries = -9
    with pytest.raises(BackendDown, match=r"http://here does not answer \(refused\).*--resume"):
        client.generate(["one"], n=2)
