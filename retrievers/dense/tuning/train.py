"""Tunes an encoder with sentence-transformers' trainer: mixed precision, dev selection, early stop, seed, resume.

After training, the tuned weights are blended with the original ones, in the proportion that is best on dev (Wortsman et
al., 2022): a model that has specialised too far for unseen tools is moved part of the way back.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from torch.optim.lr_scheduler import LambdaLR
from transformers import EarlyStoppingCallback, TrainerCallback
from transformers.trainer_utils import get_last_checkpoint

from retrievers.dense.encoder import check_device, fingerprint
from retrievers.dense.model_loading import load_model
from retrievers.dense.tuning.dev_recall import METRIC, DevRecall, choose_blend, mine_hard_negatives
from retrievers.dense.tuning.loss import CatalogueLoss
from retrievers.dense.tuning.schedule import rate
from retrievers.kind import Context
from retrievers.progress import Progress
from retrievers.settings import WARMUP, WEIGHT_DECAY, EncoderTraining
from retrievers.training_set import TrainingSet
from retrievers.work_folder import WorkStage, reuse_work


def tune(
    base: Path, sets: Sequence[TrainingSet], settings: EncoderTraining, seed: int, work: Path, context: Context
) -> Path:
    """Train in `work`, or resume a killed run there; return the folder of the tuned encoder."""
    inputs = [fingerprint(base), settings, seed, sets]
    reuse_work(work, [WorkStage("encoder", inputs, ("encoder", "encoder.part", "eval", "checkpoint-*"))])
    finished = work / "encoder"
    if (finished / "training.json").exists():
        return finished
    where = check_device(context.device)
    cuda = where.startswith("cuda")
    model = load_model(base, where, dtype=torch.float32)
    if settings.max_length:
        model.max_seq_length = settings.max_length
    original = {name: value.detach().clone() for name, value in model.state_dict().items()}
    evaluator = DevRecall(sets, context.measure, cuda)
    before = evaluator(model)
    mined = [mine_hard_negatives(model, data, settings.candidates, cuda) for data in sets]
    losses: dict[str, torch.nn.Module] = {
        data.name: CatalogueLoss(model, data, negatives, settings.temperature, settings.candidates, seed)
        for data, negatives in zip(sets, mined, strict=True)
    }
    prompt = (getattr(model, "prompts", None) or {}).get("query") or ""
    datasets = {
        data.name: Dataset.from_dict(
            {"query": [prompt + query for query in data.train.queries], "label": list(range(len(data.train)))}
        )
        for data in sets
    }
    trainer = _Trainer(
        model=model,
        args=_arguments(work, settings, seed, cuda),
        train_dataset=datasets,
        loss=losses,
        evaluator=evaluator,
        callbacks=[EarlyStoppingCallback(settings.patience), _StepProgress(context.show_progress)],
    )
    for checkpoint in work.glob("checkpoint-*"):
        if not (checkpoint / "trainer_state.json").exists():  # written last: the run was killed before
            shutil.rmtree(checkpoint)
    trainer.train(resume_from_checkpoint=get_last_checkpoint(str(work)))  # type: ignore[no-untyped-call]
    share, scores = choose_blend(model, original, evaluator, settings.blends)
    history = [
        {"epoch": row["epoch"], METRIC: row[f"eval_{METRIC}"]}
        for row in trainer.state.log_history
        if f"eval_{METRIC}" in row
    ]
    facts = {"before": before, "after": scores[share], "blend": share, "blends": scores, "history": history}
    _save(model, facts | {"settings": asdict(settings)}, finished)
    return finished


def _save(model: SentenceTransformer, facts: dict[str, Any], finished: Path) -> None:
    """Write the encoder beside its final folder first, so that a killed run leaves no half of one."""
    part = finished.with_name("encoder.part")
    shutil.rmtree(part, ignore_errors=True)
    model.save_pretrained(str(part), create_model_card=False)
    (part / "training.json").write_text(json.dumps(facts, indent=1))
    part.rename(finished)


class _Trainer(SentenceTransformerTrainer):
    """The library's trainer without its model card, which samples the data; `training.json` is written instead."""

    def add_model_card_callback(self, default_args_dict: dict[str, Any]) -> None:
        pass

    def create_scheduler(self, num_training_steps: int, optimizer: torch.optim.Optimizer | None = None) -> LambdaLR:
        """Linear warmup and decay; the library's own schedule begins with a step at rate 0, at times a whole epoch."""
        if self.lr_scheduler is None:
            warmup = self.args.get_warmup_steps(num_training_steps)
            scheduled = self.optimizer if optimizer is None else optimizer
            assert scheduled is not None
            self.lr_scheduler = LambdaLR(scheduled, lambda step: rate(step, warmup, num_training_steps))
            self._created_lr_scheduler = True
        schedule: LambdaLR = self.lr_scheduler
        return schedule


class _StepProgress(TrainerCallback):
    """Shows the steps of a training."""

    def __init__(self, show: bool) -> None:
        self._show, self._progress = show, Progress("", 0, "", False)

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Begin at the step of the checkpoint."""
        self._progress = Progress("tuning the encoder", state.max_steps, "steps", self._show, state.global_step)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Count a step."""
        self._progress.add()

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """End the bar."""
        self._progress.close()


def _arguments(work: Path, settings: EncoderTraining, seed: int, cuda: bool) -> SentenceTransformerTrainingArguments:
    return SentenceTransformerTrainingArguments(
        output_dir=str(work),
        num_train_epochs=settings.epochs,
        per_device_train_batch_size=settings.batch_size,
        learning_rate=settings.learning_rate,
        warmup_steps=WARMUP,  # a float: a share of all steps
        weight_decay=WEIGHT_DECAY,
        seed=seed,
        bf16=cuda and torch.cuda.is_bf16_supported(),
        fp16=cuda and not torch.cuda.is_bf16_supported(),
        use_cpu=not cuda,
        restore_callback_states_from_checkpoint=True,  # early stopping goes on counting
        eval_strategy="epoch",
        save_strategy="epoch",
        save_total_limit=1,
        load_best_model_at_end=True,
        metric_for_best_model=f"eval_{METRIC}",
        greater_is_better=True,
        logging_strategy="epoch",
        disable_tqdm=True,  # _StepProgress shows it
        report_to="none",
    )
