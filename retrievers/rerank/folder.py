"""A reranker's folder: weights or adapter, tokenizer, and a card, written last."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from retrievers.calibration.logistic import Calibration
from retrievers.errors import BadInput, ModelMissing

CARD_FILE = "reranker.json"
"""Written last: a folder without it is not a reranker."""
ADAPTER = "adapter_model.safetensors"


@dataclass(frozen=True, slots=True)
class RerankChoice:
    """Depth and weight that dev chose in front of one kind of retriever."""

    retriever: str
    """The retriever in words, such as `hybrid of bm25 and dense bundled:tools`."""
    top: int
    """Tools that are reranked."""
    weight: float
    """Share of the reranker in the new order; 0: it did not help."""
    calibration: dict[str, Any] = field(default_factory=dict)
    """Intercept and weights, from which a tool's probability follows; empty: not calibrated."""
    min_probability: float | None = None
    """The threshold with the best balance of precision and recall on dev."""

    def calibrate(self) -> Calibration | None:
        """The calibration of reranked scores."""
        if not self.calibration:
            return None
        return Calibration(**{**self.calibration, "weights": tuple(self.calibration["weights"])})


@dataclass(frozen=True, slots=True)
class RerankerCard:
    """Origin of a reranker, and how it is used."""

    kind: Literal["cross-encoder", "language-model"]
    base: str
    """The base model as in the config."""
    base_fingerprint: str
    """Hash of the base model's files."""
    method: Literal["lora", "full"]
    max_length: int
    max_tool: int
    choices: tuple[RerankChoice, ...]
    """One per retriever that it was tried with, the preferred one first."""
    data: list[dict[str, Any]] = field(default_factory=list)
    """Per data set of its training: name, licence, queries."""
    metrics: dict[str, Any] = field(default_factory=dict)
    training: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)

    def choose(self, retriever: str) -> RerankChoice:
        """The choice for a retriever; that of the first one where it was never tried."""
        return next((choice for choice in self.choices if choice.retriever == retriever), self.choices[0])


@dataclass(frozen=True, slots=True)
class RerankerFolder:
    """A finished reranker on disk."""

    path: Path
    card: RerankerCard

    @property
    def adapter(self) -> Path | None:
        """The adapter's folder; None where the folder holds a whole model."""
        return self.path if self.card.method == "lora" else None


def open_reranker(path: Path) -> RerankerFolder:
    """Open and check a reranker's folder, or the one in a training run's folder."""
    inner = path / "reranker"
    if not (path / CARD_FILE).is_file() and (inner / CARD_FILE).is_file():
        path = inner
    if not (path / CARD_FILE).is_file():
        raise ModelMissing(
            f"{path} is not a finished reranker: it has no {CARD_FILE}; train one with `rewrite-train rerank`"
        )
    try:
        facts = json.loads((path / CARD_FILE).read_text(encoding="utf-8"))
        choices = tuple(RerankChoice(**choice) for choice in facts.pop("choices"))
        card = RerankerCard(**facts, choices=choices)
        if not choices:
            raise ValueError("it has no choices")
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise BadInput(
            f"{path / CARD_FILE} is not a reranker's card ({error}); train it again with `rewrite-train rerank`"
        ) from error
    weights = ADAPTER if card.method == "lora" else "config.json"
    if not (path / weights).is_file():
        raise ModelMissing(f"the reranker in {path} has no {weights}; it is damaged, train or copy it again")
    return RerankerFolder(path, card)


def write_card(path: Path, card: RerankerCard) -> None:
    """Write the card, whole or not at all; it finishes the folder."""
    part = path / f".part-{CARD_FILE}"
    part.write_text(json.dumps(asdict(card), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    os.replace(part, path / CARD_FILE)
