"""What an asker adds to vLLM and the retriever: its requests' latencies less the time that those two had them."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from serve_clients import Asked
from serve_watch import Span, remainder


@dataclass
class Own:
    """Milliseconds of every request that were the asker's own, and where the gateway has them."""

    total: list[float] = field(default_factory=list)
    in_rewrite: list[float] = field(default_factory=list)
    """Of the stage `rewrite`, as the gateway tells it, all that vLLM has not had."""
    not_answered: int = 0

    def add(self, asked: Iterable[Asked], vllm: Sequence[Span], retriever: Sequence[Span]) -> None:
        """One more round. Every utterance is known by its text, which nobody else has."""
        for each in asked:
            utterance, lines, stages = _facts(each)
            mine = [span for span in vllm if any(utterance in text for text in span.texts)]
            if not mine:
                self.not_answered += 1
                continue
            [answering] = mine
            texts = {utterance, *lines}
            searching = [span for span in retriever if not texts.isdisjoint(span.texts)]
            self.total.append(1000 * remainder(each.began, each.ended, [answering, *searching]))
            if "rewrite" in stages:
                self.in_rewrite.append(stages["rewrite"] - 1000 * (answering.ended - answering.began))

    def percentile(self, share: float) -> float:
        """Milliseconds."""
        ordered = sorted(self.total)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("nan")

    def summary(self) -> dict[str, float]:
        """For the JSON."""
        return {
            "requests": len(self.total),
            "not_answered": self.not_answered,
            "p50_ms": round(self.percentile(0.5), 2),
            "p95_ms": round(self.percentile(0.95), 2),
            **({"in_rewrite_p50_ms": round(statistics.median(self.in_rewrite), 2)} if self.in_rewrite else {}),
        }


def _facts(asked: Asked) -> tuple[str, list[str], dict[str, float]]:
    """Utterance, lines of the rewrite and the gateway's stages; of bare vLLM there are no stages."""
    if "messages" in asked.body:
        return asked.body["messages"][-1]["content"], [], {}
    answer = json.loads(asked.answer)
    [result] = answer.get("results", [{}])
    lines = (result.get("rewrite") or {}).get("lines", [])
    return asked.body["utterance"], lines, answer.get("timings_ms", {})
