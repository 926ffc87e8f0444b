"""What befalls an alignment on its way ends it in one sentence, with an exit code and something to go on from."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from killing import started
from paths import SUPPORT
from tiny_runs import PLAIN, align_config, make_targets
from waiting import PATIENCE, listens, until

from pipelines.cli import main as cli
from rewrite.align.groups import trainers as group_trainers
from rewrite.align.groups.adapter_rollouts import persistent
from rewrite.errors import BackendDown
from rewrite.folder import open_folder
from rewrite.sft import checkpoints

WILD = ["method=full", "learning_rate=1e30", "warmup=0", "schedule=constant", "evaluations=4"]
SAMPLES = {"answers": 3, "most_tokens": 6, "chunk": 3}
KINDS: dict[str, dict[str, Any]] = {
    "dpo": {"kind": "dpo", "samples": SAMPLES, "pairing": {"margin": 0.001}},
    "best-of-n": {"kind": "best-of-n", "samples": SAMPLES, "margin": 0.0},
    "grpo": {"kind": "grpo", "answers": 2, "most_tokens": 5},
    "rloo": {"kind": "rloo", "answers": 2, "most_tokens": 5},
    "ppo": {"kind": "ppo", "most_tokens": 5, "minibatch": 2, "passes": 1},
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
    asked = align_config(targets, start, tmp_path / "run", algo, queries=4, check=2)
    wild = [word for change in WILD for word in ("--set", f"training.{change}")]
    told = ended(capsys, 2, "align", asked, *wild)
    assert "became" in told
    assert "last good checkpoint kept; start it again in another output with a lower learning_rate" in told
    # Best of n judges its loss on dev before it saves, so that it has found out after the first step.
    assert (checkpoints.last(tmp_path / "run" / "checkpoints") is None) == (algo["kind"] == "best-of-n")
    assert not (tmp_path / "run" / "rewriter").exists()


@pytest.mark.parametrize("name", ["best-of-n", "ppo"])
def test_answers_that_cannot_be_read_stop_it_before_training(
    targets: Path, untied_lm: Path, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    strict = make_targets(tmp_path / "strict")
    start = {"base": str(untied_lm), "template": str(strict / "template.yaml")}
    told = ended(capsys, 2, "align", align_config(strict, start, tmp_path / "run", KINDS[name]))
    assert "the majority of answers cannot be parsed (" in told
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_trls_client_of_a_server_is_patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_trainers, "persistent", partial(persistent, wait=0.0))

    class Client:
        tries = 0

        def generate(self, prompts: list[str], n: int) -> list[str]:
            self.tries += 1
            if self.tries < 3:
                raise ConnectionError("refused")
            return prompts * n

    client = Client()
    group_trainers.patient(client, "http://here")
    assert client.generate(["one"], n=2) == ["one", "one"]
    client.tries = -9
    with pytest.raises(BackendDown, match=r"http://here does not answer \(refused\).*--resume"):
        client.generate(["one"], n=2)


@contextmanager
def rollout_server(port: int, answers: int = 0) -> Iterator[subprocess.Popen[bytes]]:
    script = SUPPORT / "rollout_server.py"
    with started([sys.executable, str(script), str(port), str(answers)]) as process:
        until(lambda: process.poll() is not None or listens(port), 0.05)
        assert process.poll() is None, "it ended before it listened"
        yield process


def test_a_rollout_server_that_dies_ends_the_run_which_goes_on_when_it_is_back(
    targets: Path,
    start: dict[str, Any],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(group_trainers, "persistent", partial(persistent, wait=0.01))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    algo = KINDS["grpo"] | {"by": "adapter", "url": f"http://127.0.0.1:{port}/v1"}
    asked = align_config(targets, start, tmp_path / "run", algo, check=2)
    with rollout_server(port, answers=11) as server:  # two a step, a checkpoint after the fourth of eight
        told = ended(capsys, 1, "align", asked)
        assert server.wait(PATIENCE) == 9
    assert f"the rollout server http://127.0.0.1:{port}/v1 does not answer" in told
    assert "start it again, then go on with `--resume` from the last checkpoint" in told
    kept = checkpoints.last(tmp_path / "run" / "checkpoints")
    assert kept is not None
    assert kept.name == "checkpoint-4"
    with rollout_server(port):
        assert cli.train(["align", asked, "--device", "cpu", "--resume"]) == 0
    assert json.loads((tmp_path / "run" / "metrics.json").read_text())["training"]["done"] == 8
    assert open_folder(tmp_path / "run").card.training["algo"]["by"] == "adapter"
