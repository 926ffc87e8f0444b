"""What a example teaches: several answers to one question teach what as many examples would."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from generative_toys import DATA, TOOLS, TRAINING, save_toy_model, toolgen
from hypothesis import given, settings
from hypothesis import strategies as st

from retrievers.errors import BadInput
from retrievers.generative.decoding.beam import beam_search
from retrievers.generative.decoding.language_model import LanguageModel, load_model
from retrievers.generative.decoding.local_model import _unique_tokens
from retrievers.generative.decoding.trie import Trie
from retrievers.generative.settings import GenerativeTraining
from retrievers.generative.training import loop
from retrievers.generative.training.examples import TokenExample, retrieval_examples
from retrievers.generative.training.loss import batch_loss, lay_out
from retrievers.index import build
from retrievers.kind import Context
from retrievers.registry import make_kind
from retrievers.text import document
from retrievers.training_set import Examples


@pytest.fixture(scope="module")
def toy_lm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_toy_model(tmp_path_factory.mktemp("models") / "toy")


def single(example: TokenExample) -> list[TokenExample]:
    """A example for each of its answers."""
    if not example.branches:
        return [example]
    ends = [*example.branches[1:], len(example.tokens)]
    asked = example.branches[0]
    return [
        TokenExample(
            (*example.tokens[:asked], *example.tokens[start:end]),
            (*example.learned[:asked], *example.learned[start:end]),
        )
        for start, end in zip(example.branches, ends, strict=True)
    ]


def gradients(
    folder: Path, batch: list[TokenExample], attention: str = "sdpa"
) -> tuple[float, dict[str, torch.Tensor]]:
    model = load_model(folder)
    model.set_attn_implementation(attention)
    loss, _ = batch_loss(model, batch, "cpu")
    loss.backward()
    return float(loss.detach()), {name: weight.grad for name, weight in model.named_parameters()}


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_answers_side_by_side_teach_what_examples_of_their_own_would(toy_lm: Path, attention: str) -> None:
    frames = LanguageModel(toy_lm, "cpu").chat
    gold = ((0, 3, 5), (1,), (2, 4))
    data = replace(DATA, train=Examples(DATA.train.queries[:3], gold))
    codes = {f"t{i}": (20 + i, 30 + i, 40 + i)[: 1 + i % 3] for i in range(8)}  # of one, two and three tokens
    shared = retrieval_examples([data], codes, frames, 128)
    assert [len(example.branches) for example in shared] == [3, 0, 2]
    apart = [each for example in shared for each in single(example)]
    assert len(apart) == 6
    (left, grads), (right, others) = gradients(toy_lm, shared, attention), gradients(toy_lm, apart)
    assert left == pytest.approx(right, abs=1e-5)
    for name, grad in grads.items():
        assert torch.allclose(grad, others[name], atol=2e-6), name


def test_a_example_is_laid_out_with_every_answer_right_behind_the_question() -> None:
    example = TokenExample((5, 6, 7, 50, 9, 60, 61, 9), (False,) * 3 + (True,) * 5, (3, 5))
    grid, pairs, read = lay_out([example, TokenExample((5, 50, 9), (False, True, True))])
    assert read == 11
    assert grid[1, 0].tolist() == [0, 1, 2, 3, 4, 3, 4, 5]
    assert grid[2, 0].tolist() == [0, 0, 0, 1, 1, 2, 2, 2]
    assert pairs.tolist() == [[2, 3, 2, 5, 6, 8, 9], [50, 9, 60, 61, 9, 50, 9]]


def learn(model: Path, training: GenerativeTraining, work: Path, context: Context) -> dict[str, object]:
    kind = make_kind(toolgen(model, training), context)
    folder = kind.train_tools(TOOLS, [document(tool) for tool in TOOLS], [DATA], work)  # type: ignore[attr-defined]
    found: dict[str, object] = json.loads((folder / "training.json").read_text())
    return found


def test_documents_are_rehearsed_and_only_some_epochs_are_judged(
    toy_lm: Path, context: Context, tmp_path: Path
) -> None:
    training = replace(TRAINING, eval_every=2, retrieve=replace(TRAINING.retrieve, epochs=3, rehearse=0.1))
    facts = learn(toy_lm, training, tmp_path / "work", context)
    stage = facts["stages"]["retrieve"]  # type: ignore[index]
    assert stage["examples"] == 48 + 4
    assert ["recall@5" in row for row in stage["history"]] == [False, True, True]


def test_four_documents_a_query_are_four_however_few_documents_there_are(
    toy_lm: Path, context: Context, tmp_path: Path
) -> None:
    training = replace(
        TRAINING,
        memorise=replace(TRAINING.memorise, epochs=0),
        retrieve=replace(TRAINING.retrieve, epochs=1, rehearse=4),
    )
    facts = learn(toy_lm, training, tmp_path / "work", context)
    assert facts["stages"]["retrieve"]["examples"] == 48 + 4 * 48  # type: ignore[index]


def test_the_first_stage_has_nothing_to_rehearse() -> None:
    with pytest.raises(BadInput, match="the first stage has nothing to rehearse, got rehearse: 1"):
        replace(TRAINING, memorise=replace(TRAINING.memorise, rehearse=1.0))


def test_a_loss_that_is_no_number_ends_the_training(
    toy_lm: Path, context: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "MAX_GRAD_NORM", 1e30)
    wild = replace(TRAINING, memorise=replace(TRAINING.memorise, epochs=40, learning_rate=1e30))
    with pytest.raises(BadInput, match=r"the loss of memorise is (nan|inf) at step \d+; lower learning_rate"):
        build(tmp_path / "index", TOOLS, {"toolgen": toolgen(toy_lm, wild)}, context, training={"toolgen": [DATA]})


class FlatDecoder:
    """One step, the same logarithms for every query."""

    def __init__(self, scores: np.ndarray) -> None:
        self._scores = scores

    def log_probs(self, starts: np.ndarray, tokens: np.ndarray, top: int) -> np.ndarray:
        return self._scores[tokens]

    def advance(self, rows: np.ndarray, tokens: np.ndarray) -> None:
        raise AssertionError("one token a tool")


@given(scores=st.lists(st.sampled_from([-1.0, -1.00001, -2.0, -3.0]), min_size=1, max_size=30), k=st.integers(1, 8))
def test_a_short_answer_keeps_all_that_may_be_among_the_best(scores: list[float], k: int) -> None:
    trie = Trie([(token,) for token in range(len(scores))], range(len(scores)), 99)
    for ends, told in beam_search(FlatDecoder(np.array(scores)), 2, trie, 4, k, True):
        rows = {trie.rows[end][0] for end in ends.tolist()}
        bar = sorted(scores, reverse=True)[: min(k, len(scores))][-1]
        assert rows == {row for row, score in enumerate(scores) if score >= bar - 1e-3}
        assert len(told) == len(rows)


@settings(max_examples=60)
@given(rows=st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=5, unique=True), min_size=1, max_size=4))
def test_equal_rows_are_counted_as_any_others(rows: list[list[int]]) -> None:
    for some in (rows, [rows[0]] * 3):
        tokens = np.array([token for row in some for token in row])
        starts = np.cumsum([0, *map(len, some)])
        for left, right in zip(_unique_tokens(starts, tokens), np.unique(tokens, return_inverse=True), strict=True):
            assert left.tolist() == right.tolist()
