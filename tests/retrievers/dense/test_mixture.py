"""Training of one encoder on several sets."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from test_tuning import DOCUMENTS, GOLD, QUERIES, WORDS

from pipelines.models import find_model
from retrievers.dense.tuning import general
from retrievers.dense.tuning.general import freeze_parameters, train_mixture
from retrievers.dense.tuning.mixture import Mixture, MixtureSet, set_shares
from retrievers.dense.tuning.tokens import TokenizedTexts
from retrievers.errors import BadInput
from retrievers.settings import MixtureTraining
from retrievers.training_set import Examples

TOY = MixtureSet("toy", DOCUMENTS, Examples(QUERIES, GOLD))
PAIRS = MixtureSet("pairs", tuple(WORDS), Examples(tuple(WORDS[:4]), tuple((i, i + 4) for i in range(4))))
SETTINGS = MixtureTraining(steps=6, batch_size=4, learning_rate=5e-4, negatives=2, max_length=16)


def load() -> SentenceTransformer:
    return SentenceTransformer(str(find_model("bundled:minilm")), device="cpu", local_files_only=True)


@pytest.fixture(scope="module")
def model() -> SentenceTransformer:
    return load()


@pytest.fixture(scope="module")
def mixture(model: SentenceTransformer) -> Mixture:
    return Mixture(model, [TOY, PAIRS], SETTINGS, 0, "cpu")


def test_cached_tokens_give_the_vectors_of_the_library(model: SentenceTransformer) -> None:
    texts = ["a", "get the weather of a city tomorrow", "Über 東京 " * 400, "two words"]
    model.eval()
    with torch.no_grad():
        ours = TokenizedTexts(model, texts, "document", "cpu").encode(model, chunk=2).numpy()
    theirs = model.encode_document(texts, normalize_embeddings=True)
    assert np.allclose(ours, theirs, atol=1e-5)


def test_a_model_without_padded_rows_is_tokenized_per_batch(model: SentenceTransformer) -> None:
    class Bare:
        prompts = None

        def preprocess(self, texts: list[str]) -> dict[str, torch.Tensor]:
            return {"lengths": torch.tensor([float(len(text)) for text in texts])}

        def __call__(self, features: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
            return {"sentence_embedding": torch.stack([features["lengths"], torch.ones(len(features["lengths"]))], 1)}

    vectors = TokenizedTexts(Bare(), ["abc", "a"], "query", "cpu").encode(Bare())
    assert torch.allclose(vectors[:, 0] / vectors[:, 1], torch.tensor([3.0, 1.0]))


def test_a_batch_holds_one_set_its_gold_and_no_gold_as_a_negative(mixture: Mixture) -> None:
    seen = set()
    for step in range(20):
        batch = mixture.draw(step)
        seen.add(batch.set_index)
        assert np.allclose(batch.targets.sum(axis=1), 1)
        assert set((batch.targets > 0).sum(axis=1)) == {2 if batch.set_index else 1}
        assert len(batch.documents) > int((batch.targets.max(axis=0) > 0).sum()) or batch.set_index
        again = mixture.draw(step)
        assert (again.queries, again.documents) == (batch.queries, batch.documents)
    assert seen == {0, 1}


def test_shares_follow_a_power_of_the_sizes() -> None:
    assert np.allclose(set_shares([100, 400], 0.5), [1 / 3, 2 / 3])
    assert np.allclose(set_shares([100, 400], 0.0), [0.5, 0.5])


def test_it_learns_and_leaves_frozen_weights_alone(tmp_path: Path) -> None:
    model = load()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    mixture = Mixture(model, [TOY], replace(SETTINGS, steps=30, batch_size=8), 0, "cpu")
    losses = train_mixture(model, mixture, replace(SETTINGS, steps=30, batch_size=8), 0, tmp_path, False)
    assert losses[-1][1] < losses[0][1]
    moved = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert moved
    assert not any("word_embeddings" in name for name in moved)


def test_freezing_everything_is_refused(model: SentenceTransformer) -> None:
    with pytest.raises(BadInput, match="leaves no weights to train"):
        freeze_parameters(model, ("",))


def test_a_loss_that_is_not_finite_stops_the_run() -> None:
    with pytest.raises(BadInput, match="the loss is nan at step 3"):
        general._finite(torch.tensor(float("nan")), 3)


def train_toy(work: Path) -> dict[str, torch.Tensor]:
    """Six steps with a checkpoint every two."""
    general.SAVE_EVERY = 2
    model = load()
    train_mixture(model, Mixture(model, [TOY, PAIRS], SETTINGS, 0, "cpu"), SETTINGS, 0, work, False)
    return dict(model.state_dict())


def test_a_killed_run_continues_and_ends_with_the_same_weights(tmp_path: Path) -> None:
    code = """
import os, signal, sys
from pathlib import Path
sys.path[:0] = [sys.argv[1]]
import test_mixture as t
from retrievers.dense.tuning import general
save = general._save
def save_and_die(path, step, *rest):
    save(path, step, *rest)
    if step == 4:
        os.kill(os.getpid(), signal.SIGKILL)
general._save = save_and_die
t.train_toy(Path(sys.argv[2]))
"""
    work = tmp_path / "killed"
    work.mkdir()
    arguments = [sys.executable, "-c", code, str(Path(__file__).parent), str(work)]
    done = subprocess.run(arguments, capture_output=True, env={**os.environ})
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()[-500:]
    (tmp_path / "whole").mkdir()
    left, right = train_toy(work), train_toy(tmp_path / "whole")
    assert all(torch.equal(left[name], right[name]) for name in left)
