"""One training of a reranker: on some of the sets, in a folder of its own, resumed after a kill."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from pipelines.models import find_model
from pipelines.train.rerank.sets import TO_TRAIN, RerankSet, first_lists
from pipelines.train.rerank.settings import RerankConfig
from retrievers.dense.adapter import weights_hash
from retrievers.dense.tuning.general import CHECKPOINT
from retrievers.kind import Context
from retrievers.progress import say
from retrievers.rerank.settings import CrossEncoderSettings
from retrievers.rerank.training.batches import RerankTrainingSet, TrainingLists
from retrievers.rerank.training.loop import train_reranker
from retrievers.work_folder import WorkStage, reuse_work

TUNED = "tuned"
FILES = (TUNED, "tuned.part", CHECKPOINT, "*.part", "losses.json", "metrics.json", "lists.npz", "report.html")


def tune_reranker(sets: Sequence[RerankSet], config: RerankConfig, work: Path, context: Context) -> Any:
    """The trained reranker, loaded as it was saved; trains in `work` unless that is done."""
    base = find_model(config.model.base)
    training = [_training_set(data, config, context) for data in sets]
    inputs = [weights_hash(base), asdict(config.model), config.training, config.seed, [asdict(one) for one in training]]
    reuse_work(work, [WorkStage("reranker", inputs, FILES)], ("config.yaml", "environment.json"))
    if not (work / TUNED).exists():
        say(f"{work}: {len(sets)} sets, {sum(len(one.queries) for one in training):,} queries", context.show_progress)
        torch.manual_seed(config.seed)  # a new head, or a new adapter
        model = load_untrained(base, config, context.device)
        lists = TrainingLists(training, config.training, config.seed)
        losses = train_reranker(model, lists, config.training, config.seed, work, context.show_progress)
        part = work / "tuned.part"
        shutil.rmtree(part, ignore_errors=True)
        model.save(part)
        (work / "losses.json").write_text(json.dumps(losses))
        part.rename(work / TUNED)
        (work / CHECKPOINT).unlink(missing_ok=True)
        del model
    return load_trained(base, work / TUNED, config, context.device)


def _training_set(data: RerankSet, config: RerankConfig, context: Context) -> RerankTrainingSet:
    [lists] = first_lists(data, TO_TRAIN, config, context).values()
    examples = data.examples[TO_TRAIN]
    return RerankTrainingSet(data.name, data.documents, examples.queries, examples.gold, lists.rows)


def load_untrained(base: Path, config: RerankConfig, device: str | None) -> Any:
    """The base model, ready to be trained."""
    settings = config.model
    if isinstance(settings, CrossEncoderSettings):
        from retrievers.rerank.cross_encoder import CrossEncoderReranker

        encoder = CrossEncoderReranker(base, settings.max_length, settings.max_tool, device)
        encoder.prepare_training()
        return encoder
    from retrievers.rerank.language_model import LanguageModelReranker

    model = LanguageModelReranker(base, settings.max_length, settings.max_tool, device)
    model.prepare_training(settings)
    return model


def load_trained(base: Path, folder: Path, config: RerankConfig, device: str | None) -> Any:
    """A trained model as a server loads it."""
    settings = config.model
    limits = settings.max_length, settings.max_tool
    if isinstance(settings, CrossEncoderSettings):
        from retrievers.rerank.cross_encoder import CrossEncoderReranker

        return CrossEncoderReranker(folder, *limits, device)
    from retrievers.rerank.language_model import LanguageModelReranker

    is_adapter = settings.method == "lora"
    return LanguageModelReranker(base if is_adapter else folder, *limits, device, folder if is_adapter else None)
