"""Refuses a retriever whose training makes an evaluation, or the training of a rewriter, too easy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pipelines.data.splits import Protocol
from retrievers.errors import BadInput
from retrievers.index import Index


def refuse_trained(
    name: str, index: Index, retriever: str, dataset: str, protocol: Protocol, split: str | None = None
) -> None:
    """Refuse a retriever that was trained on what it shall find; `name` is its name in the message.

    Trained under another protocol, it has seen the tools that `unseen-tools` holds out. MassTool's weights have learned
    its training queries, so that `split: train` cannot measure it; dev queries are held out of its pool.
    """
    part = index.manifest.retrievers.get(retriever)
    for inner in part.settings.get("of", ()) if part else ():
        refuse_trained(name, index, inner, dataset, protocol, split)
    training: dict[str, Any] | None = part.settings.get("train") if part else None
    if part is None or not training:
        return
    sources = {Path(source["path"].removeprefix("bundled:")).name for source in training["data"]}
    if dataset not in sources - {training.get("hold_out")}:
        return
    if training["protocol"] != protocol and protocol != "official":
        raise BadInput(
            f"{name} was trained on {dataset} with protocol {training['protocol']}, so it has seen the "
            f"tools that {protocol} holds out; train it with `protocol: {protocol}`"
        )
    if part.settings["kind"] == "masstool" and split == "train":
        raise BadInput(
            f"{name} was trained on the train queries of {dataset}, so they cannot measure it; evaluate dev or test"
        )
