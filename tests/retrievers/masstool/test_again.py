"""A second run, on train and dev together: what it takes over, what may judge it, what it tells."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from test_masstool import LESSONS, SETTINGS, WIDTH

from pipelines.data.label_augmentation import with_joined
from retrievers.masstool.model import Heads
from retrievers.masstool.training.again import strangers, together
from retrievers.masstool.training.detection_threshold import decide
from retrievers.masstool.training.epochs import learn
from retrievers.masstool.training.tensors import Labelled, Lessons
from retrievers.training_set import Examples, Labels, TrainingSet

ASKS = tuple(f"please book a table for {number} at place{number}" for number in range(20))
CHATS = tuple(f"tell me a story about animal{number} and the sea" for number in range(20))
DEV_NAMES = {"plain", "before", "after", "calibrated", "mean", "recall@3", "recall@5", "ndcg@5", "comp@3"}


def whole() -> Lessons:
    """Train and dev in one, with labels whose words tell what they are."""
    lessons = with_words(LESSONS)
    return replace(lessons, train=torch.cat([LESSONS.train, LESSONS.dev]), gold=[*LESSONS.gold, *LESSONS.dev_gold])


def with_words(lessons: Lessons) -> Lessons:
    texts = [*(ASKS * 5), *(CHATS * 5)]
    return replace(
        lessons, labels=replace(lessons.labels, texts=texts), dev_labels=replace(lessons.labels, texts=texts)
    )


def names(facts: object) -> set[str]:
    """Every key, however deep."""
    if isinstance(facts, list):
        return set().union(*map(names, facts))
    return set().union(facts, *map(names, facts.values())) if isinstance(facts, dict) else set()


def test_labels_that_are_or_hold_what_was_learned_from_are_no_strangers() -> None:
    known = ["book a table  for two", "what is the weather in Oslo today", "weather"]
    strange = [
        "book a table for twoscore",
        "rebook a table for two.",
        "whatever the weathers bring",
        "",
        "a table for two",
    ]
    held = [
        "book a table for two",
        "Then: book a\ntable for two and leave",
        "say it. what is the weather in Oslo today",
        "a long story, cut off: what is the weather in Os",
        "nice weather",
    ]
    found = strangers(Labels((*strange, *held), (True, False) * 5), known)
    assert found == Labels(tuple(strange), (True, False, True, False, True))


@given(st.data())
def test_a_joined_text_is_a_stranger_if_all_its_parts_are(data: st.DataObject) -> None:
    words = st.lists(st.sampled_from("ab cd ef gh".split()), min_size=1, max_size=4).map(" ".join)
    known = data.draw(st.lists(words, max_size=4))
    parts = [*known, *data.draw(st.lists(words, min_size=2, max_size=4))]
    text = data.draw(st.sampled_from(["\n", " ", " Then: ", " and "])).join(data.draw(st.permutations(parts)))
    padded = f" {' '.join(text.split())} "
    held = any(f" {each} " in padded for each in known)
    found = bool(strangers(Labels((text,), (True,)), known).queries)
    assert not (held and found)
    if not held and not any(
        padded.rstrip().endswith(f" {each[:end]}") for each in known for end in range(1, len(each))
    ):
        assert found


def test_dev_labels_of_a_second_run_are_strangers_to_train_and_dev() -> None:
    train, dev = Examples(ASKS[:5], ((0,),) * 5), Examples(ASKS[5:9], ((0,),) * 4)
    labels = with_joined(Labels((*ASKS[3:14], *CHATS), (True,) * 11 + (False,) * 20), 2.0)
    data = TrainingSet("toy", ("a tool",), train, dev, ("t",), Labels(ASKS[14:], (True,) * 6), labels)
    found = together(data)
    assert found.train == Examples(ASKS[:9], ((0,),) * 9)
    assert found.labels == data.labels
    kept = dict(zip(found.dev_labels.queries, found.dev_labels.needs, strict=True))
    expected = {
        text: needs
        for text, needs in zip(labels.queries, labels.needs, strict=True)
        if not any(ask in " ".join(text.split()) for ask in ASKS[:9])
    }
    assert kept == expected
    assert sum(kept.values()) < sum(labels.needs)
    assert any(kept.values())


def test_where_strangers_of_one_kind_are_left_the_first_threshold_stands() -> None:
    heads, first = learn(with_words(LESSONS), SETTINGS, None, "cpu", False)
    chats = LESSONS.labels.needs.logical_not().nonzero()[:, 0]
    left = Labelled(LESSONS.labels.vectors[chats], LESSONS.labels.needs[chats], CHATS * 5)
    for dev_labels in (left, replace(left, vectors=left.vectors[:0], needs=left.needs[:0], texts=())):
        again, told = learn(replace(whole(), dev_labels=dev_labels), SETTINGS, None, "cpu", False, first)
        decided = told["detection"]
        assert decided["threshold"] == first["detection"]["threshold"]
        assert (decided["words"], decided["first_run"]) == (first["detection"]["words"], first["detection"])
        assert decided["words"] > 0
        assert "balanced_accuracy" not in decided
        assert torch.equal(again.telling, heads.telling)
        assert torch.equal(again.words, heads.words)
        assert told["warm_up"] == first["warm_up"] == 50  # the tower is taught as the first one was
        likely = again.likely(LESSONS.labels.vectors, [*(ASKS * 5), *(CHATS * 5)])
        assert ((likely >= decided["threshold"]) == LESSONS.labels.needs).float().mean() > 0.9
    nobody = Heads(SETTINGS, WIDTH, 0, 0).eval()
    assert decide(nobody, LESSONS.labels, left) is None


def test_of_both_kinds_strangers_choose_the_threshold_anew() -> None:
    _, first = learn(with_words(LESSONS), SETTINGS, None, "cpu", False)
    few = torch.arange(0, 200, 7)
    texts = [*(ASKS * 5), *(CHATS * 5)]
    left = Labelled(LESSONS.labels.vectors[few], LESSONS.labels.needs[few], [texts[place] for place in few.tolist()])
    _, told = learn(replace(whole(), dev_labels=left), SETTINGS, None, "cpu", False, first)
    assert told["detection"]["queries"] == len(few)
    assert "first_run" not in told["detection"]


def test_a_second_run_takes_over_what_dev_chose_and_tells_no_dev_scores() -> None:
    heads, first = learn(LESSONS, SETTINGS, None, "cpu", False)
    again, told = learn(whole(), SETTINGS, None, "cpu", False, {**first, "best_epoch": 2, "kept": "trained"})
    assert torch.equal(again.shares, heads.shares)
    assert float(again.threshold) == pytest.approx(float(heads.threshold), abs=1e-5)
    assert told["epochs"] == 2
    assert names(first) >= DEV_NAMES
    assert not names(told) & DEV_NAMES
    untouched, told = learn(whole(), SETTINGS, None, "cpu", False, {**first, "kept": "untrained"})
    assert told["epochs"] == 0
    assert not untouched.residual.any()


def test_a_second_run_never_asks_dev(monkeypatch: pytest.MonkeyPatch) -> None:
    _, first = learn(LESSONS, SETTINGS, None, "cpu", False)
    monkeypatch.setattr("retrievers.masstool.training.trainer.Learning.scores", lambda _: pytest.fail("dev was asked"))
    learn(whole(), SETTINGS, None, "cpu", False, first)
