"""Labels out of labels: the catalogue's own queries, and requests of many steps."""

from __future__ import annotations

import pytest

from pipelines.config import parse
from pipelines.data.label_augmentation import MAX_CHARACTERS, add_catalogue_queries, add_joined_texts
from retrievers.errors import BadInput
from retrievers.masstool.settings import MassToolSettings, MassToolTraining
from retrievers.settings import TrainingSource
from retrievers.training_set import Labels

LABELS = Labels(tuple(f"text {number}" for number in range(30)), tuple(number < 20 for number in range(30)))


def test_own_queries_need_a_tool_and_are_as_many_as_asked_for() -> None:
    own = [f"own {number}" for number in range(50)] + ["text 3"]
    found = add_catalogue_queries(LABELS, own, 0.5)
    assert found.queries[:30] == LABELS.queries
    assert len(found.queries) == 40
    assert all(found.needs[30:])
    assert set(found.queries[30:]) < set(own) - {"text 3"}
    assert add_catalogue_queries(LABELS, own[::-1], 0.5) == found
    assert add_catalogue_queries(LABELS, own, 0) == LABELS
    assert sorted(add_catalogue_queries(LABELS, own, 9.0, own[4:]).queries[30:]) == own[:4]


def test_joined_texts_are_of_one_kind_and_the_same_every_time() -> None:
    found = add_joined_texts(LABELS, 0.5)
    assert found == add_joined_texts(LABELS, 0.5)
    assert found.needs[30:] == (True,) * 10 + (False,) * 5
    for text, needs in zip(found.queries[30:], found.needs[30:], strict=True):
        inside = [
            number for number in range(30) if f"text {number} " in f"{text} ".replace("\n", " ").replace(",", " ")
        ]
        assert all(LABELS.needs[number] == needs for number in inside)
        assert len(inside) in range(2, 7 if needs else 5)
    assert add_joined_texts(Labels(("one",), (True,)), 1.0) == Labels(("one",), (True,))
    assert (
        max(map(len, add_joined_texts(Labels(("word " * 900, "other " * 900), (False, False)), 1.0).queries[2:]))
        == MAX_CHARACTERS
    )


def test_bad_label_settings_are_refused() -> None:
    data = (TrainingSource("toy"),)
    with pytest.raises(BadInput, match="joined_labels must be at least 0, got -1"):
        parse(MassToolTraining, {"data": [{"path": "toy"}], "joined_labels": -1})
    for key, other in (("joined_labels", "own_labels"), ("own_labels", "joined_labels")):
        with pytest.raises(BadInput, match=f"set train.{key} to 0"):
            MassToolSettings(train=MassToolTraining(data=data, **{other: 0.0}), faithful=True)
    assert MassToolSettings(train=MassToolTraining(data=data, own_labels=0.0, joined_labels=0.0), faithful=True)
