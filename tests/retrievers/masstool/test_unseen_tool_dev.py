"""MassTool for catalogues most of whose tools nobody has asked for yet."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from masstool_data import CONTEXT
from torch.nn import functional

from pipelines.config import parse
from retrievers.errors import BadInput
from retrievers.masstool.graph import full_view, make_edges
from retrievers.masstool.offline_scores import offline_scores
from retrievers.masstool.settings import MassToolSettings, MassToolTraining
from retrievers.masstool.training.epochs import train_heads
from retrievers.masstool.training.tensors import DevMetrics, TrainingTensors, nearest, no_labels
from retrievers.masstool.training.trainer import HeadTrainer
from retrievers.settings import TrainingSource
from reward.metrics import measure_rankings

TRAIN = MassToolTraining(
    data=(TrainingSource("toy"),), own_labels=0.0, joined_labels=0.0, epochs=4, batch_size=64, learning_rate=3e-3
)
SETTINGS = MassToolSettings(train=TRAIN, neighbours=5)
FIELDS, EACH, KNOWN, WIDTH = 8, 16, 4, 48
TOOLS, ASKED = FIELDS * EACH, FIELDS * KNOWN


def unit(values: torch.Tensor) -> torch.Tensor:
    return functional.normalize(values, dim=-1)


def catalogue(seed: int = 0) -> tuple[TrainingTensors, torch.Tensor, list[list[int]]]:
    """Eight fields of sixteen tools, of which four are ever asked for; then requests for the others.

    All requests of a field are alike, so that whoever asks has neighbours, and they want the known four.
    """
    generator = torch.Generator().manual_seed(seed)
    field = torch.arange(TOOLS) % FIELDS
    centres = unit(torch.randn(FIELDS, WIDTH, generator=generator))
    own = unit(torch.randn(TOOLS, WIDTH, generator=generator))

    def ask(rows: torch.Tensor) -> torch.Tensor:
        noise = unit(torch.randn(len(rows), WIDTH, generator=generator))
        return unit(centres[field[rows]] + 0.2 * own[rows] + 0.8 * noise)

    train, dev, others = torch.arange(320) % ASKED, torch.arange(96) % ASKED, torch.arange(ASKED, TOOLS)
    known = [[[row] for row in rows.tolist()] for rows in (train, dev)]
    tools = unit(centres[field] + own)
    lessons = TrainingTensors(tools, ask(train), known[0], ask(dev), known[1], no_labels(WIDTH), no_labels(WIDTH))
    return lessons, ask(others), [[row] for row in others.tolist()]


def test_a_request_for_a_tool_that_nobody_asked_for_is_not_carried_away() -> None:
    lessons, requests, gold = catalogue(seed=1)
    judged = DevMetrics(measure_rankings, gold)
    plain = judged(requests @ lessons.tools.T)["recall@5"]
    found = {}
    for share in (0.0, None):
        settings = replace(SETTINGS, train=replace(TRAIN, unseen_tool_weight=share))
        heads, facts = train_heads(lessons, settings, None, CONTEXT)
        found[share] = judged(offline_scores(heads, lessons, requests).cpu())["recall@5"]
        assert ("unseen_tools" in facts["after"]) == (share is None)
    assert found[0.0] < plain - 0.04  # by dev as it is, votes can only help
    assert found[None] > found[0.0] + 0.04
    assert found[None] > plain - 0.02


def test_tools_are_struck_out_as_if_they_had_never_been_asked_for() -> None:
    """Held against a catalogue where they really have not."""
    lessons, _, _ = catalogue(seed=1)
    learning = HeadTrainer(lessons, SETTINGS, CONTEXT)
    for number in range(2):
        learning.epoch(number)
    found = learning.dev()
    heads, known = learning.heads, set(range(ASKED))
    total = 0.0
    for half in learning.unseen.halves:
        left = set(half.trained.tolist())
        new = known - left
        rows = [row for row, gold in enumerate(lessons.gold) if gold[0] in left]
        dev = [row for row, gold in enumerate(lessons.dev_gold) if gold[0] in new]
        seen = full_view(make_edges([lessons.gold[row] for row in rows], TOOLS))
        with torch.no_grad():
            tools = heads.tools(lessons.tools, lessons.train[rows], seen, half.trained)
            near = nearest(lessons.dev[dev], lessons.train[rows], SETTINGS.neighbours)
            asked = heads(lessons.dev[dev], near, lessons.train[rows], seen, tools, None).vectors @ tools.vectors.T
        total += DevMetrics(measure_rankings, [lessons.dev_gold[row] for row in dev])(asked)["mean"] * len(dev)
        assert len(new) == ASKED // 2
    assert found["unseen_tools"] == pytest.approx(total / len(lessons.dev))
    assert found["mean"] == pytest.approx(0.25 * found["seen_tools"] + 0.75 * found["unseen_tools"])


def test_where_every_tool_has_been_asked_for_dev_stays_as_it_is() -> None:
    lessons, _, _ = catalogue()
    whole = replace(lessons, tools=lessons.tools[:ASKED])
    assert "unseen_tools" not in HeadTrainer(whole, SETTINGS, CONTEXT).dev()


def test_a_share_is_a_share() -> None:
    data = [{"path": "toy"}]
    with pytest.raises(BadInput, match=r"unseen_tool_weight must be at most 1, got 1\.5"):
        parse(MassToolTraining, {"data": data, "unseen_tool_weight": 1.5})
