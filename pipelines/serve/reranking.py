"""The reranker of a server: within the deadline of the request, or the first order stays and the response says so."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence

from pipelines.rerank.loading import RerankerParts, choice_warning, find_reranker, load_model, make_stage
from pipelines.rerank.settings import RerankSettings
from pipelines.rerank.stage import RerankedRanking, RerankStage
from pipelines.search import ToolSearch
from pipelines.serve.batcher import Batcher
from pipelines.serve.catalogue.live_index import Snapshot
from pipelines.serve.errors import Refusal, RerankReason
from pipelines.serve.formats.definitions import CHARACTERS_PER_TOKEN
from pipelines.serve.metrics import Metrics
from pipelines.serve.results import Timings
from pipelines.serve.rewriter.dispatcher import LoadedRewriter
from pipelines.serve.rewriter.second_adapter import NotStarted, SecondAdapter
from pipelines.serve.schemas.search import Fingerprints, RerankOut, SearchRequest
from pipelines.serve.tracing import span
from retrievers.base import Reranker
from retrievers.errors import BadInput
from retrievers.types import Ranking

BATCH_SIZE = 4
"""Utterances that a model in this process reads together."""
VLLM_THREADS = 8
"""Requests at a vLLM at the same time."""
MAX_WAITING = 64
"""Utterances that may wait for it; further ones keep their first order."""
log = logging.getLogger("rewrite-serve")
Item = tuple[str, Ranking]


class ServedReranker:
    """Reranks lists in a thread of its own."""

    def __init__(self, settings: RerankSettings, metrics: Metrics, device: str | None) -> None:
        """Find, check and load the model: a config that cannot work fails here, before the server listens."""
        self.parts: RerankerParts = find_reranker(settings)
        self.second = _second_adapter(self.parts) if settings.engine == "vllm" else None
        """The adapter that the rewriter's vLLM has to load."""
        self._metrics, self._model = metrics, self._load(device)
        self._stages: dict[str, RerankStage] = {}
        self._batcher: Batcher[tuple[ToolSearch, RerankStage], Item, RerankedRanking] = Batcher(
            _rerank, VLLM_THREADS if self.second else 1, BATCH_SIZE, MAX_WAITING
        )
        self.seconds = 0.05
        """Moving average of the time that reranking takes."""

    def _load(self, device: str | None) -> Reranker:
        if self.second is None:
            return load_model(self.parts, device)
        from retrievers.rerank.vllm_reranker import ServerReranker, load_prompt

        card = self.parts.folder.card
        prompt = load_prompt(self.parts.model, card.max_length, card.max_tool)
        return ServerReranker(prompt, self.second.post, self.parts.fingerprint)

    def estimate_tokens(self, search: ToolSearch, utterances: Sequence[str], tool_bytes: float) -> int:
        """Tokens that reranking reads: of each utterance with each of the first tools, which have this mean size."""
        stage, limit = self._stage(search), self.parts.folder.card.max_length
        lengths = (min(limit, (len(text) + tool_bytes) / CHARACTERS_PER_TOKEN) for text in utterances)
        return round(stage.top * sum(lengths)) if stage.weight else 0

    def is_calibrated(self, search: ToolSearch) -> bool:
        """True if reranked tools have probabilities."""
        return self._stage(search).calibration is not None

    async def rerank(
        self, search: ToolSearch, utterance: str, ranking: Ranking, deadline: float, timings: Timings
    ) -> tuple[Ranking, RerankOut | None]:
        """The list in its new order, and what became of it; None where the card gives the reranker no weight."""
        stage, began = self._stage(search), time.monotonic()
        if not stage.weight:
            return ranking, None
        try:
            async with asyncio.timeout(max(0.0, deadline - began)):
                with span("rerank"):
                    [reranked] = await self._batcher.run((search, stage), [(utterance, ranking)])
        except TimeoutError:
            return ranking, self._fallback("deadline")
        except Refusal:
            return ranking, self._fallback("busy")
        except NotStarted:
            return ranking, self._fallback("starting")
        except ConnectionError as error:
            log.warning("the reranker cannot be reached: %s", error)
            return ranking, self._fallback("unavailable")
        except Exception:
            log.exception("the reranker failed")
            return ranking, self._fallback("failed")
        finally:
            timings.add("rerank", began)
        self.seconds += 0.1 * (time.monotonic() - began - self.seconds)
        if reranked.failure is not None:
            return ranking, self._fallback(reranked.failure)
        return reranked.ranking, RerankOut(tools=min(stage.top, len(ranking)), weight=stage.weight, fallback=None)

    def _fallback(self, reason: RerankReason) -> RerankOut:
        self._metrics.not_reranked.labels(reason).inc()
        return RerankOut(tools=0, fallback=reason)

    def _stage(self, search: ToolSearch) -> RerankStage:
        """The stage with depth and weight for the retriever that is searched; an index may be replaced."""
        words = search.words
        if words not in self._stages:
            if warning := choice_warning(self.parts, words):
                log.warning("%s", warning)
            self._stages[words] = make_stage(self.parts, self._model, words)
        return self._stages[words]

    def close(self) -> None:
        """Take no more lists."""
        self._batcher.close()


def _second_adapter(parts: RerankerParts) -> SecondAdapter:
    if parts.folder.adapter is None:
        raise BadInput(
            f"the reranker in {parts.folder.path} is a whole model, which cannot share the rewriter's vLLM; set "
            "`rerank.engine` to transformers"
        )
    return SecondAdapter(parts.model, parts.folder.adapter)


def _rerank(key: tuple[ToolSearch, RerankStage], items: Sequence[Item]) -> list[RerankedRanking]:
    search, stage = key
    utterances, rankings = zip(*items, strict=True)
    return search.rerank(utterances, rankings, stage)


def check_thresholds(request: SearchRequest, snapshot: Snapshot, reranker: ServedReranker | None) -> None:
    """Refuse thresholds where neither the retriever nor the reranker is calibrated."""
    search = snapshot.search
    calibrated = search.is_calibrated or (reranker is not None and reranker.is_calibrated(search))
    for name in ("min_score", "min_probability"):
        if getattr(request, name) is not None and not calibrated:
            way_out = "this server's operator can run `rewrite-index calibrate`"
            raise Refusal(422, "not_calibrated", f"{name} needs a calibrated retriever; {way_out}")


def fingerprints(
    snapshot: Snapshot, loaded: LoadedRewriter | None, reranker: ServedReranker | None = None
) -> Fingerprints:
    """Versions of everything that takes part in an answer."""
    return Fingerprints(
        index=snapshot.index.fingerprint,
        retriever=snapshot.search.fingerprint,
        rewriter=str(loaded.facts.get("fingerprint") or loaded.model) if loaded else None,
        template=f"{loaded.template.name} {loaded.template.version}" if loaded else None,
        reranker=reranker.parts.fingerprint if reranker else None,
    )
