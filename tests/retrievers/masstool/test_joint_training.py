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
from retrievers.masstool.encoder.joint_training import Stop, _Joint, tune_jointly
from retrievers.masstool.settings import Beside
from retrievers.training_set import Examples, Labels

FEW = replace(
    DATA,
    train=Examples(DATA.train.queries[::2], DATA.train.gold[::2]),
    labels=Labels((*DATA.train.queries[:6], *(f"hello {name}" for name in "abcdef")), (True,) * 6 + (False,) * 6),
)
QUICK = replace(SETTINGS, epochs=2, learning_rate=1e-3)
BESIDE = Beside(scenes=0.2, votes=0.2, masked=0.05, refreshed=4, averaged=0.8)


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    work = tmp_path_factory.mktemp("joint") / "work"
    return tune_jointly(find_model("bundled:minilm"), FEW, QUICK, 0.1, work, "cpu", False, BESIDE)


def test_it_learns_and_says_how(tuned: Path) -> None:
    facts = json.loads((tuned / "training.json").read_text())
    assert facts["after"]["recall@5"] > facts["before"]["recall@5"]
    assert facts["after"]["recall@5"] == facts["blends"][facts["blend"]] == max(facts["blends"].values())
    assert [row["epoch"] for row in facts["history"]] == [1, 2]
    assert facts["history"][1]["loss"] < facts["history"][0]["loss"]
    assert not (tuned.parent / "joint.safetensors").exists()
    assert facts["best"] == max(max(row["voted"], row["averaged voted"]) for row in facts["history"])
    assert facts["weights"] in ("last", "averaged")


def test_a_run_that_follows_another_is_not_judged_and_stops_where_told(tmp_path: Path) -> None:
    base, stop = find_model("bundled:minilm"), Stop(1, "averaged", 0.75)
    done = tune_jointly(base, FEW, QUICK, 0.1, tmp_path / "work", "cpu", False, BESIDE, stop)
    facts = json.loads((done / "training.json").read_text())
    assert [sorted(row) for row in facts["history"]] == [["epoch", "loss", "seconds"]]
    assert facts.keys() == {"epoch", "history", "weights", "blend", "settings", "detection", "beside"}
    assert (facts["epoch"], facts["weights"], facts["blend"]) == (1, "averaged", "0.75")


def test_votes_are_judged_with_the_judged_models_own_vectors() -> None:
    joint = _Joint(find_model("bundled:minilm"), FEW, QUICK, 0.1, "cpu", BESIDE)
    expected = joint.judge(joint.model)["voted"]
    joint.aims.voters = torch.randn(joint.aims.voters.shape, generator=torch.Generator().manual_seed(0))
    assert joint.judge(joint.model)["voted"] == expected
    joint.mean = {name: torch.zeros_like(value) for name, value in joint.mean.items()}
    assert joint.judge_mean()["voted"] < expected  # nor do the last weights vote for the averaged ones


def test_a_killed_run_goes_on_and_ends_with_the_same_weights(tuned: Path, tmp_path: Path) -> None:
    code = """
import os, signal, sys
sys.path[:0] = [sys.argv[1]]
import test_joint_training as t
from pathlib import Path
from retrievers.masstool.encoder import joint_training as joint
plain = joint._Joint.epoch
def epoch(self, number, bar):
    if number == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return plain(self, number, bar)
joint._Joint.epoch = epoch
t.tune_jointly(t.find_model("bundled:minilm"), t.FEW, t.QUICK, 0.1, Path(sys.argv[2]), "cpu", False, t.BESIDE)
"""
    work = tmp_path / "work"
    done = subprocess.run(
        [sys.executable, "-c", code, str(Path(__file__).parent), str(work)], capture_output=True, env={**os.environ}
    )
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()[-500:]
    assert (work / "joint.safetensors").exists()
    again = tune_jointly(find_model("bundled:minilm"), FEW, QUICK, 0.1, work, "cpu", False, BESIDE)
    left, right = (load_file(each / "model.safetensors") for each in (tuned, again))
    assert left.keys() == right.keys()
    assert all(torch.equal(left[name], right[name]) for name in left)
