"""Interface of the engines that run the rewriter: they keep the dispatcher's endpoints and rewriter up to date."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import NamedTuple

from pipelines.rewriters import RewriterParts, describe
from pipelines.serve.metrics import Metrics
from pipelines.serve.rewriter.breaker import Breaker
from pipelines.serve.rewriter.dispatcher import LoadedRewriter, RewriteDispatcher
from pipelines.serve.rewriter.prompt_budget import PromptBudget
from pipelines.serve.rewriter.second_adapter import SecondAdapter
from pipelines.serve.rewriter.settings import ServedRewriter
from retrievers.settings import RewriteFusion
from rewrite.backends.base import Backend


class EngineSetup(NamedTuple):
    """Constructor arguments of all engines."""

    settings: ServedRewriter
    parts: RewriterParts
    dispatcher: RewriteDispatcher
    metrics: Metrics
    device: str | None
    second: SecondAdapter | None = None
    """Shares the managed vLLM."""


class RewriterEngine(ABC):
    """Base of all engines. `load` raises OSError or ValueError if the rewriter cannot be loaded."""

    def __init__(self, setup: EngineSetup) -> None:
        self._settings, self.parts, self._dispatcher, self._metrics, self._device, self._second = setup

    @abstractmethod
    async def start(self) -> None:
        """Start without waiting until the model is up, unless it runs in this process."""

    @abstractmethod
    async def load(self, parts: RewriterParts) -> None:
        """Switch to another rewriter; requests in progress are answered by the old one."""

    async def retry(self) -> None:
        """Load the rewriter where it is missing."""
        return

    @abstractmethod
    async def unload(self, model: str) -> None:
        """Remove an old model that no request uses any more; the current one stays."""

    @abstractmethod
    async def close(self) -> None:
        """Stop everything that was started."""

    def _breaker(self) -> Breaker:
        return Breaker(self._settings.max_failures)

    async def _loaded(self, model: str, parts: RewriterParts, backend: Backend, kind: str = "") -> LoadedRewriter:
        settings = self._settings
        budget = await asyncio.to_thread(PromptBudget, backend, parts.template, settings.sampling.max_tokens)
        fusion = choose_fusion(settings, parts)
        facts = describe(parts) | {"engine": kind or settings.engine.kind}
        return LoadedRewriter(model, parts.template, budget, settings.sampling, parts.phrasing, fusion, facts)


def choose_fusion(settings: ServedRewriter, parts: RewriterParts) -> RewriteFusion:
    """The fusion of the config, else of the rewriter's card."""
    return settings.fusion or parts.fusion or RewriteFusion()
