"""The encoder tuned for both tasks at once: on made-up words, so that a CPU can watch it happen."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from test_tuning import DATA, SETTINGS

from pipelines.models import find_model
from retrievers.kind import Context
from retrievers.masstool.encoder.joint_training import JointTrainer, tune_jointly
from retrievers.masstool.settings import AuxiliaryLosses, EncoderTuning
from retrievers.training_set import Examples, Labels
from reward.metrics import measure_rankings

FEW = replace(
    DATA,
    train=Examples(DATA.train.queries[::2], DATA.train.gold[::2]),
    labels=Labels((*DATA.train.queries[:6], *(f"hello {name}" for name in "abcdef")), (True,) * 6 + (False,) * 6),
)
TUNING = EncoderTuning(
    mode="joint",
    epochs=2,
    batch_size=SETTINGS.batch_size,
    learning_rate=1e-3,
    max_length=SETTINGS.max_length,
    blends=SETTINGS.blends,
    auxiliary=AuxiliaryLosses(
        scene_weight=0.2, vote_weight=0.2, token_dropout=0.05, documents_per_step=4, ema_decay=0.8
    ),
)
CONTEXT = Context(find_model, device="cpu", measure=measure_rankings)


def tune(work: Path) -> Path:
    return tune_jointly(find_model("bundled:minilm"), FEW, TUNING, 0.1, 0, work, CONTEXT)


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    work = tmp_path_factory.mktemp("joint") / "work"
    return tune(work)


def test_it_learns_and_says_how(tuned: Path) -> None:
    facts = json.loads((tuned / "training.json").read_text())
    assert facts["after"]["recall@5"] > facts["before"]["recall@5"]
    assert facts["after"]["recall@5"] == facts["blends"][facts["blend"]] == max(facts["blends"].values())
    assert [row["epoch"] for row in facts["history"]] == [1, 2]
    assert facts["history"][1]["loss"] < facts["history"][0]["loss"]
    assert not (tuned.parent / "joint.safetensors").exists()
    assert facts["best"] == max(max(row["with_votes"], row["averaged with_votes"]) for row in facts["history"])
    assert facts["weights"] in ("last", "averaged")


def test_votes_are_judged_with_the_judged_models_own_vectors() -> None:
    joint = JointTrainer(find_model("bundled:minilm"), FEW, TUNING, 0.1, 0, CONTEXT)
    expected = joint.dev_metrics(joint.model)["with_votes"]
    joint.loss.votes.voters = torch.randn(joint.loss.votes.voters.shape, generator=torch.Generator().manual_seed(0))
    assert joint.dev_metrics(joint.model)["with_votes"] == expected
    joint.mean = {name: torch.zeros_like(value) for name, value in joint.mean.items()}
    assert joint.mean_dev_metrics()["with_votes"] < expected  # nor do the last weights vote for the averaged ones


def test_a_killed_run_goes_on_and_ends_with_the_same_weights(tuned: Path, tmp_path: Path) -> None:
    code = """
import os, signal, sys
sys.path[:0] = [sys.argv[1]]
import test_joint_training as t
from pathlib import Path
from retrievers.masstool.encoder import joint_training as joint
plain = joint.JointTrainer.epoch
def epoch(self, number, bar):
    if number == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return plain(self, number, bar)
joint.JointTrainer.epoch = epoch
t.tune(Path(sys.argv[2]))
"""
    work = tmp_path / "work"
    done = subprocess.run(
        [sys.executable, "-c", code, str(Path(__file__).parent), str(work)],
        capture_output=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()[-500:]
    assert (work / "joint.safetensors").exists()
    again = tune(work)
    left, right = (load_file(each / "model.safetensors") for each in (tuned, again))
    assert left.keys() == right.keys()
    assert all(torch.equal(left[name], right[name]) for name in left)
