"""The compact form of a trained cross-encoder, with figures of its own: rounding must not cost what training gained."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from pipelines.models import find_model
from pipelines.train.rerank.settings import RerankConfig
from retrievers.errors import BadInput
from retrievers.rerank.compact import write_compact
from retrievers.rerank.folder import open_reranker, write_card
from retrievers.rerank.settings import CrossEncoderSettings

COMPACT = "compact"


def write_compact_form(config: RerankConfig, reranker: Path, judge: Callable[[Path], dict[str, Any]]) -> dict[str, Any]:
    """Write the folder `compact` beside a finished reranker; return bytes and figures, {} for another kind of model.

    `judge` evaluates the whole model in a folder on the judged sets.
    """
    target = reranker.with_name(COMPACT)
    if not isinstance(config.model, CrossEncoderSettings):
        return {}
    try:
        size = write_compact(find_model(config.model.base), reranker, target)
    except (BadInput, OSError, KeyError):  # a base of another architecture, or one that is a cross-encoder already
        return {}
    facts = {"bytes": size, "judged": judge(find_model(str(target)))}
    card = open_reranker(target).card
    write_card(target, replace(card, metrics=card.metrics | {COMPACT: facts}))
    return facts
