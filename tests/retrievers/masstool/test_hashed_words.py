"""A detector that looks at words beside the vector."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from masstool_data import torch_heads
from test_masstool import SETTINGS, WIDTH

from retrievers.errors import IndexBroken
from retrievers.masstool.artifacts import WEIGHTS, Artifacts, load_artifacts, save_artifacts
from retrievers.masstool.hashed_words import BUCKETS, bags, buckets, word_logits
from retrievers.masstool.model import Heads
from retrievers.masstool.serving.arrays import load_parts, save_parts
from retrievers.masstool.serving.heads import ServingHeads
from retrievers.masstool.training.detection_threshold import choose_threshold
from retrievers.masstool.training.tensors import LabelledVectors
from retrievers.masstool.training.word_fit import STRENGTH, fit_words

ASKS = [f"please book a table for {number} at place{number}" for number in range(20)]
CHATS = [f"tell me a story about animal{number} and the sea" for number in range(20)]
TEXTS, NEEDS = [*ASKS, *CHATS], torch.arange(40) < 20


def test_words_and_pairs_count_once_and_numbers_are_alike() -> None:
    assert len(buckets("Book 17 tables, book 4 tables")) == 3 + 3
    assert buckets("Book 17 tables!") == buckets("book 4 tables")
    assert len(buckets("天气 怎么样")) == 5 + 4  # every character is a word
    assert buckets("...") == []
    assert bags(["...", "a b"]).sum(axis=1).tolist() == [[0.0], [pytest.approx(3 * 3**-0.5)]]


def test_the_fit_is_where_the_ridge_and_the_labels_balance() -> None:
    weights = fit_words(TEXTS[:30], NEEDS[:30]).double().numpy()  # 20 need a tool, 10 do not: each side counts as much
    x, y = bags(TEXTS[:30]).toarray(), NEEDS[:30].double().numpy()
    found = x @ weights[:-1] + weights[-1]
    shares = STRENGTH * 30 / 2 * np.where(y > 0, 1 / 20, 1 / 10)
    slope = shares * (1 / (1 + np.exp(-found)) - y)
    assert np.abs(x.T @ slope + weights[:-1]).max() < 0.05
    assert abs(slope.sum()) < 0.05
    assert weights.shape == (BUCKETS + 1,)
    assert np.allclose(word_logits(weights, TEXTS[:30]), found, atol=1e-4)


def untold() -> Heads:
    """Heads whose tower knows nothing."""
    torch.manual_seed(0)
    return Heads(SETTINGS, WIDTH, 0, 0).eval()


def labelled(places: slice, noise: int) -> LabelledVectors:
    vectors = torch.randn(40, WIDTH, generator=torch.Generator().manual_seed(noise))[places]
    return LabelledVectors(vectors, NEEDS[places], TEXTS[places])


def test_dev_gives_the_words_the_share_they_deserve() -> None:
    heads = untold()
    told = choose_threshold(heads, labelled(slice(0, 40, 2), 1), labelled(slice(1, 40, 2), 2))
    assert told is not None
    assert told["words"] > 0.5
    assert told["balanced_accuracy"] == max(told["shares"].values()) == 1.0
    asked = labelled(slice(1, 40, 2), 3)
    likely = heads.detect(asked.vectors, asked.texts)
    assert ((likely >= told["threshold"]) == asked.needs).float().mean() > 0.9


def test_words_that_mislead_are_left_out() -> None:
    heads, dev = untold(), labelled(slice(1, 40, 2), 2)
    with torch.no_grad():
        needing = heads.detection_logits(dev.vectors) > heads.detection_logits(dev.vectors).median()
    misled = [ASKS[0] if not each else CHATS[0] for each in needing.tolist()]
    told = choose_threshold(heads, labelled(slice(0, 40, 2), 1), LabelledVectors(dev.vectors, needing, misled))
    assert told is not None
    assert told["words"] == 0
    assert not len(heads.word_weights)
    assert told["balanced_accuracy"] == 1.0
    likely = heads.detect(dev.vectors, misled)
    assert ((likely >= told["threshold"]) == needing).all()


def test_what_was_decided_is_kept_on_disk_and_none_of_it_may_be_missing(tmp_path: Path) -> None:
    heads = untold()
    choose_threshold(heads, labelled(slice(0, 40, 2), 1), labelled(slice(1, 40, 2), 2))
    none = np.zeros((0, WIDTH), np.float32)
    served = ServingHeads(SETTINGS, {name: value.numpy() for name, value in heads.state_dict().items()})
    save_artifacts(tmp_path, Artifacts(served, none, none, none, {}, none, [], {}))
    again = load_artifacts(tmp_path, SETTINGS).heads
    vectors = labelled(slice(0, 40), 5).vectors
    assert np.array_equal(again.word_weights, heads.word_weights.numpy())
    detected = heads.detect(vectors, TEXTS).detach().numpy()
    assert np.allclose(again.detect(vectors.numpy(), TEXTS), detected, atol=2e-3)  # 16 bits
    assert np.allclose(torch_heads(served).detect(vectors, TEXTS), detected)
    found = load_parts(tmp_path / WEIGHTS)
    assert found is not None
    for lost in ("word_weights", "detection_mix"):
        heads_part = {name: value for name, value in found[0]["heads"].items() if name != lost}
        save_parts(tmp_path / WEIGHTS, found[0] | {"heads": heads_part}, found[1])
        with pytest.raises(IndexBroken, match="rewrite-index build"):
            load_artifacts(tmp_path, SETTINGS)
    save_parts(tmp_path / WEIGHTS, found[0], {})
    with pytest.raises(IndexBroken, match=r"format 1.* reads 2; run `rewrite-index build`"):
        load_artifacts(tmp_path, SETTINGS)
