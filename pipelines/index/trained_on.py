"""Refuses a retriever whose training makes an evaluation, or the training of a rewriter, too easy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pipelines.data.splits import Protocol
from retrievers.errors import BadInput
from retrievers.index import Index
from retrievers.settings import hybrid_parts


def refuse_trained(
    name: str,
    index: Index,
    retriever: str,
    dataset: str,
    protocol: Protocol,
    uses_dev: bool,
    uses_train: bool = False,
) -> None:
    """Refuse a retriever that was trained on what it shall find; `name` is its name in the message.

    Trained under another protocol, it may have seen the tools that `unseen-tools` or `late-tools` holds out, and dev
    queries. MassTool's weights have learned its training queries, so that `split: train` cannot measure it.
    """
    part = index.manifest.retrievers.get(retriever)
    for inner in hybrid_parts(part.settings) if part else ():
        refuse_trained(name, index, inner, dataset, protocol, uses_dev, uses_train)
    training: dict[str, Any] | None = part.settings.get("train") if part else None
    if part is None or not training:
        return
    sources = {Path(source["path"].removeprefix("bundled:")).name for source in training["data"]}
    if dataset not in sources - {training.get("hold_out")}:
        return
    other = training["protocol"] != protocol
    if other and protocol != "official":
        raise BadInput(
            f"{name} was trained on {dataset} with protocol {training['protocol']}, so it has seen the "
            f"tools that {protocol} holds out; train it with `protocol: {protocol}`"
        )
    if other and uses_dev:
        raise BadInput(
            f"{name} was trained on {dataset} with protocol {training['protocol']}, so it may have learned dev queries "
            f"of protocol {protocol}; use one protocol for both, or evaluate test with a given fusion"
        )
    if part.settings["kind"] == "masstool" and uses_train:
        raise BadInput(
            f"{name} was trained on the train queries of {dataset}, so they cannot measure it; evaluate dev or test"
        )
