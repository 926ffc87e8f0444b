"""The context that commands give to retrievers: model lookup, cache, device, engine."""

from __future__ import annotations

from pipelines.models import cache_folder, find_model
from pipelines.vllm_engine import vllm
from retrievers.kind import Context
from reward.metrics import measure_rankings


def make_context(device: str | None = None, show_progress: bool = False, engine: str = "transformers") -> Context:
    """The context of a command."""
    return Context(
        find_model, cache_folder(), show_progress, device, engine=engine, vllm=vllm, measure=measure_rankings
    )
