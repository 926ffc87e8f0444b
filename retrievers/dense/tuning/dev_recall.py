"""Dev recall of an encoder, hard negatives mined with it, and the blend of tuned and original weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from sentence_transformers.sentence_transformer.evaluation import SentenceEvaluator

from retrievers.kind import Measure
from retrievers.settings import HARD_NEGATIVES
from retrievers.training_set import TrainingSet

METRIC = "recall@5"


class DevRecall(SentenceEvaluator):
    """Recall@5 over the dev queries of every set, each ranked against its whole catalogue; the mean decides."""

    def __init__(self, sets: Sequence[TrainingSet], measure: Measure, cuda: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._sets, self._measure, self._cuda = sets, measure, cuda
        self.primary_metric = METRIC

    def __call__(
        self, model: Any, output_path: str | None = None, epoch: float = -1, steps: int = -1
    ) -> dict[str, float]:
        recalls = {}
        for data in self._sets:
            top = nearest_rows(model, data.dev.queries, data.documents, 5, self._cuda)
            values = self._measure([METRIC], top.tolist(), data.dev.gold)[METRIC].tolist()
            recalls[f"{data.name}_{METRIC}"] = sum(values) / len(values)
        return {METRIC: sum(recalls.values()) / len(recalls), **recalls}


def nearest_rows(model: Any, queries: Sequence[str], documents: Sequence[str], k: int, cuda: bool) -> np.ndarray:
    """(queries, k) rows of the nearest documents, encoded as a search encodes them."""
    document_vectors = _encode(model.encode_document, documents, cuda)
    query_vectors = _encode(model.encode_query, queries, cuda)
    top: np.ndarray = (query_vectors @ document_vectors.T).topk(min(k, len(documents))).indices.cpu().numpy()
    return top


def _encode(method: Callable[..., torch.Tensor], texts: Sequence[str], cuda: bool) -> torch.Tensor:
    half = torch.bfloat16 if cuda and torch.cuda.is_bf16_supported() else torch.float16
    with torch.no_grad(), torch.autocast("cuda", half, enabled=cuda):
        vectors = method(
            list(texts),
            batch_size=256 if cuda else 64,
            normalize_embeddings=True,
            convert_to_tensor=True,
            show_progress_bar=False,
        )
    return vectors.float()


def mine_hard_negatives(model: Any, data: TrainingSet, max_candidates: int, cuda: bool) -> list[list[int]]:
    """The nearest wrong candidates of every training query; none where the softmax holds the whole catalogue."""
    candidates = data.candidates()
    if len(candidates) <= max_candidates:
        return [[] for _ in data.train.queries]
    texts = [data.documents[row] for row in candidates]
    max_gold = max(map(len, data.train.gold))
    near = nearest_rows(model, data.train.queries, texts, HARD_NEGATIVES + max_gold, cuda)
    return [
        [candidates[i] for i in columns if candidates[i] not in gold][:HARD_NEGATIVES]
        for columns, gold in zip(near.tolist(), data.train.gold, strict=True)
    ]


def choose_blend(
    model: Any,
    original: Mapping[str, torch.Tensor],
    evaluator: Callable[[Any], dict[str, float]],
    blends: Sequence[float],
) -> tuple[str, dict[str, float]]:
    """Load the blend of original and tuned weights with the best dev recall; of equals, the one nearer the original."""
    tuned = {name: value.detach().clone() for name, value in model.state_dict().items()}
    scores: dict[str, float] = {}
    for share in sorted(set(blends)):
        load_blend(model, original, tuned, share)
        scores[f"{share:g}"] = evaluator(model)[METRIC]
    best = max(scores, key=lambda share: (round(scores[share], 6), -float(share)))
    load_blend(model, original, tuned, float(best))
    return best, scores


def load_blend(
    model: Any, original: Mapping[str, torch.Tensor], tuned: Mapping[str, torch.Tensor], share: float
) -> None:
    """Load a blend of original and tuned weights, `share` of it tuned."""
    blended = {
        name: torch.lerp(original[name].float(), value.float(), share).to(value.dtype)
        if value.is_floating_point()
        else value
        for name, value in tuned.items()
    }
    model.load_state_dict(blended)
