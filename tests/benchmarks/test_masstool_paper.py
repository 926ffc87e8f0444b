"""Rows of MassTool's table with the paper's form of a part."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from types import ModuleType

import pytest
import torch
from masstool_data import CONTEXT
from paths import ROOT
from test_masstool import LESSONS, SETTINGS

from retrievers.errors import BadInput
from retrievers.masstool.settings import Modules
from retrievers.masstool.training.epochs import train_heads


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import masstool_table

    yield masstool_table
    for name in ("masstool_table", "masstool_paper", "harness"):
        sys.modules.pop(name, None)


def test_every_form_differs_from_the_default_and_the_paper_has_all(table: ModuleType) -> None:
    names = table.paper_names([])
    forms = {name: table.paper_form(SETTINGS, name) for name in names}
    assert all(form != SETTINGS for form in forms.values())
    assert table.paper_names(None) == []
    with pytest.raises(BadInput, match="no form 'jiont'"):
        table.paper_names(["jiont"])
    plain, paper = Modules(), forms["paper"].modules
    for name in ("score", "scene_view", "attention", "sink", "mixing", "adapter", "learned_weights", "words"):
        assert getattr(paper, name) != getattr(plain, name)
    assert forms["faithful-joint"].faithful
    assert forms["faithful-threshold"].calibration() == "threshold"


def test_a_detector_chosen_again_is_the_one_that_training_again_would_choose(table: ModuleType) -> None:
    texts = tuple(("please book it" if needs else "a nice story") for needs in LESSONS.labels.needs)
    labels = replace(LESSONS.labels, texts=texts)
    tensors, short = replace(LESSONS, labels=labels, dev_labels=labels), replace(SETTINGS.train, epochs=1)
    settings = replace(SETTINGS, train=short)
    whole, _ = train_heads(tensors, settings, None, CONTEXT)
    assert len(whole.word_weights)
    for name in ("no-words", "half"):
        form = table.paper_form(settings, name)
        heads, facts = table.detect_again(whole, tensors, form)
        slow, slow_facts = train_heads(tensors, form, None, CONTEXT)
        assert facts["detection"] == slow_facts["detection"]
        x, words = LESSONS.dev[:5], ["please book it"] * 5
        assert torch.equal(heads.detect(x, words), slow.detect(x, words))
