"""A small MassTool over a few of the sample's tools, for tests that need a trained one."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from doubles import no_model

from pipelines.data.dataset import load_dataset
from pipelines.data.labels import load_labels
from retrievers.kind import Context
from retrievers.masstool.faithful import trainer_class
from retrievers.masstool.model import Heads
from retrievers.masstool.serving.heads import ServingHeads
from retrievers.masstool.settings import MassToolSettings, MassToolTraining
from retrievers.settings import TrainingSource
from retrievers.text import clean, document
from retrievers.training_set import Examples, Labels, TrainingSet
from retrievers.types import Tool
from reward.metrics import measure_rankings

CONTEXT = Context(no_model, device="cpu", measure=measure_rankings)
"""For trainings on vectors, which need no model."""
SETTINGS = MassToolSettings(
    train=MassToolTraining(data=(TrainingSource("bundled:sample"),), epochs=6, batch_size=32, learning_rate=3e-3),
    threshold=0.4,
)


def small_set(tools: Sequence[Tool], most: int = 60) -> TrainingSet:
    """The sample's English queries whose tools are all among these, and some that need none."""
    data = load_dataset("bundled:sample")
    rows = {tool.id: row for row, tool in enumerate(tools)}

    def examples(split: str, count: int) -> Examples:
        chosen = [query for query, gold in sorted(data.gold[split].items()) if gold <= rows.keys()][:count]
        texts = tuple(clean(data.queries[query].text) for query in chosen)
        return Examples(texts, tuple(tuple(sorted(rows[t] for t in data.gold[split][query])) for query in chosen))

    train, dev = examples("train", most), examples("dev", 20)
    others = [clean(each.text) for each in load_labels("bundled:sample").split("train") if not each.needs]
    labels = Labels((*train.queries[:30], *others[:30]), (True,) * len(train.queries[:30]) + (False,) * 30)
    held = Labels((*dev.queries[:12], *others[30:42]), (True,) * len(dev.queries[:12]) + (False,) * 12)
    documents = tuple(clean(document(tool)) for tool in tools)
    return TrainingSet("small", documents, train, dev, tuple(rows), labels, held)


def torch_heads(served: ServingHeads) -> Heads:
    """Heads of an index as training has them, to compare with."""
    state = {name: torch.from_numpy(value) for name, value in served.state.items()}
    sizes = len(state["adapter"]), len(state["residual"]), len(state["queries"])
    heads = trainer_class(served.settings).heads_class(served.settings, *sizes)
    heads.word_weights = state["word_weights"]
    heads.load_state_dict(state)
    return heads.eval().requires_grad_(False)
