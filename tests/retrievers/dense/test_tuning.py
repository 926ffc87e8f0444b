"""Dense retrieval that learns: on a few tools and made-up words, so that a CPU can watch it happen."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pipelines.context import make_context
from pipelines.index.training_summary import summary_lines
from pipelines.models import find_model
from retrievers.dense.tuning.loss import CatalogueLoss
from retrievers.dense.tuning.train import rate, tune
from retrievers.index import Index, build, verify
from retrievers.kind import Context
from retrievers.settings import DenseSettings, DenseTraining, TrainingSource
from retrievers.training_set import Examples, TrainingSet
from retrievers.types import Tool

WORDS = ["blorp", "zindle", "quax", "frum", "teggle", "wix", "snarb", "plood"]
DOCUMENTS = tuple(f"Tool number {i} does things" for i in range(8))
QUERIES = tuple(f"{opening} {word}" for word in WORDS for opening in ("please", "get me a", "now", "any", "the", "one"))
GOLD = tuple((i,) for i in range(8) for _ in range(6))
DATA = TrainingSet(
    "toy",
    DOCUMENTS,
    Examples(QUERIES, GOLD),
    Examples(tuple(f"I want {word}" for word in WORDS), tuple((i,) for i in range(8))),
)
SETTINGS = DenseTraining(
    data=(TrainingSource("toy"),), epochs=2, batch_size=8, learning_rate=5e-4, max_length=16, blends=(0.0, 1.0)
)


def tune_toy(work: Path, data: TrainingSet = DATA, **changes: Any) -> Path:
    return tune(find_model("bundled:minilm"), [data], replace(SETTINGS, **changes), 0, work, make_context("cpu"))


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return load_file(folder / "model.safetensors")


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tune_toy(tmp_path_factory.mktemp("tune") / "work")


def test_it_learns_words_that_mean_nothing(tuned: Path) -> None:
    facts = json.loads((tuned / "training.json").read_text())
    assert facts["after"] > facts["before"]["recall@5"] + 0.1
    assert facts["blend"] == "1"


def test_a_build_says_what_came_of_its_tuning(tuned: Path) -> None:
    facts = json.loads((tuned / "training.json").read_text())
    [line] = summary_lines(facts)
    assert line.endswith(f"-> {facts['after']:.3f}; kept is 100% of the tuned weights")
    [line] = summary_lines(facts | {"blend": "0"})
    assert "kept is the original model" in line


def test_a_killed_run_resumes_without_its_torn_checkpoint_and_ends_with_the_same_weights(
    tuned: Path, tmp_path: Path
) -> None:
    code = """
import os, signal, sys
from pathlib import Path
sys.path[:0] = [sys.argv[1]]
import test_tuning as t, transformers
from retrievers.dense.tuning import train

class Kill(transformers.TrainerCallback):
    def on_step_end(self, args, state, control, **rest):
        if state.global_step == 9:
            os.kill(os.getpid(), signal.SIGKILL)

class Trainer(train._Trainer):
    def __init__(self, callbacks, **rest):
        super().__init__(callbacks=[*callbacks, Kill()], **rest)

train._Trainer = Trainer
t.tune_toy(Path(sys.argv[2]))
"""
    work = tmp_path / "work"
    done = subprocess.run(
        [sys.executable, "-c", code, str(Path(__file__).parent), str(work)], capture_output=True, env={**os.environ}
    )
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()[-500:]
    assert list(work.glob("checkpoint-*"))
    (work / "checkpoint-99").mkdir()  # torn by another kill
    (work / "checkpoint-99" / "model.safetensors").write_bytes(b"half")
    again = tune_toy(work)
    left, right = tensors(tuned), tensors(again)
    assert left.keys() == right.keys()
    assert all(torch.equal(left[name], right[name]) for name in left)


def test_one_step_an_epoch_learns_from_the_first_epoch_on(tmp_path: Path) -> None:
    after = tensors(tune_toy(tmp_path / "work", epochs=1, batch_size=len(QUERIES), blends=(1.0,)))
    base = tensors(find_model("bundled:minilm"))
    assert not all(torch.equal(value, base[name]) for name, value in after.items() if name in base)


@pytest.mark.parametrize(("warm", "whole"), [(0, 1), (1, 1), (1, 8), (3, 60), (10, 10)])
def test_no_step_has_a_rate_of_0(warm: int, whole: int) -> None:
    rates = [rate(step, warm, whole) for step in range(whole)]
    assert 0 < min(rates) <= max(rates) == 1
    assert rates[:warm] == sorted(rates[:warm])
    assert rates[warm:] == sorted(rates[warm:], reverse=True)


def test_a_work_folder_of_another_run_is_not_gone_on_with(tuned: Path) -> None:
    work = tuned.parent
    other = replace(DATA, dev=Examples(DATA.dev.queries[:4], DATA.dev.gold[:4]))
    again = tune_toy(work, other, epochs=1, blends=(0.0,))
    assert json.loads((again / "training.json").read_text())["blend"] == "0"
    base = tensors(find_model("bundled:minilm"))
    assert all(torch.equal(value, base[name]) for name, value in tensors(again).items() if name in base)


def test_the_softmax_holds_gold_first_then_hard_negatives_then_a_fill() -> None:
    data = TrainingSet("toy", DOCUMENTS, Examples(("a", "b"), ((0, 1), (2,))), DATA.dev)
    wide = replace(data, train=Examples(("a", "b", "c"), ((0, 1), (2,), tuple(range(8)))))
    loss = CatalogueLoss(None, wide, [[3, 4], [5], []], 0.05, max_candidates=5, seed=0)
    assert loss.rows([0, 1]) == [0, 1, 2, 3, 5]
    assert len(CatalogueLoss(None, wide, [[], [], []], 0.05, max_candidates=5, seed=0).rows([0, 1])) == 5
    assert CatalogueLoss(None, data, [[], []], 0.05, max_candidates=8, seed=0).rows([1]) == [0, 1, 2]


def test_the_loss_is_the_cross_entropy_with_equal_shares() -> None:
    class Fixed(torch.nn.Module):
        vectors = torch.nn.functional.normalize(
            torch.tensor(np.random.default_rng(0).normal(size=(8, 4)), dtype=torch.float32), dim=-1
        )

        def preprocess(self, texts: list[str]) -> dict[str, torch.Tensor]:
            return {"rows": torch.tensor([DOCUMENTS.index(text) for text in texts])}

        def forward(self, features: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
            return {"sentence_embedding": self.vectors[features["rows"]]}

    data = TrainingSet("toy", DOCUMENTS, Examples(("a", "b"), ((0, 3), (7, 1, 2))), DATA.dev)
    loss = CatalogueLoss(Fixed(), data, [[], []], 0.5, max_candidates=8, seed=0)
    value = float(loss([{"rows": torch.tensor([4, 5])}], torch.tensor([0, 1])))
    candidates, vectors = data.candidates(), Fixed.vectors.double().numpy()
    expected = []
    for query, gold in ((4, (0, 3)), (5, (7, 1, 2))):
        logits = np.array([vectors[query] @ vectors[row] / 0.5 for row in candidates])
        logs = logits - np.log(np.exp(logits).sum())
        expected.append(-np.mean([logs[candidates.index(row)] for row in gold]))
    assert value == pytest.approx(np.mean(expected), abs=1e-5)


def test_trained_weights_are_sealed_with_the_index(context: Context, tmp_path: Path) -> None:
    tools = [Tool(f"t{i}", f"tool{i}", text) for i, text in enumerate(DOCUMENTS)]
    settings = DenseSettings(train=replace(SETTINGS, epochs=1, blends=(1.0,)))
    build(tmp_path / "index", tools, {"dense": settings}, context, training={"dense": [DATA]})
    assert not (tmp_path / "index-training").exists()
    index = Index(tmp_path / "index", context)
    assert len(index.retriever("dense").search(["blorp"], 3)[0]) == 3
    assert verify(tmp_path / "index") == []
    weights = next((tmp_path / "index").glob("dense-model-*/model.safetensors"))
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    assert any("model.safetensors" in complaint for complaint in verify(tmp_path / "index"))
