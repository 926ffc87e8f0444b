"""Base of all trainers: evaluates dev by retrieval, and stops on metrics that are not finite."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import Trainer

from rewrite.backends.in_process import TransformersBackend
from rewrite.errors import RewriteError
from rewrite.folder import disk_errors
from rewrite.rewriter import Rewriter
from rewrite.settings import Sampling
from rewrite.sft.callbacks import MetricsRecorder, TrainingWatch
from rewrite.sft.checkpoints import remove_torn
from rewrite.sft.distributed import is_main_process
from rewrite.sft.examples import Example
from rewrite.sft.metrics_log import read_start_metrics
from rewrite.template import Template
from rewrite.types import Rewrite

DevScorer = Callable[[Sequence[Rewrite]], Mapping[str, float]]
"""Rewrites of the dev examples, in their order -> retrieval metrics. An exception ends the run."""


@dataclass(frozen=True, slots=True)
class RewriterTask:
    """Model, template, examples, and the evaluation on dev."""

    base: Path
    template: Template
    train: Sequence[Example]
    dev: Sequence[Example]
    score_dev: DevScorer
    """Called in the main process only."""
    metric: str
    """The dev metric that picks the best checkpoint."""
    shown: Sequence[int] = ()
    """Indices of the dev examples whose rewrites are shown at every evaluation."""
    answer_tokens: int = 192
    """Tokens after which an answer is cut in evaluation."""
    eval_batch: int = 64
    adapter: Path | None = None
    """The adapter to train further; None: a new one, or the whole model."""


def rewrite_dev(task: RewriterTask, model: Any, tokenizer: Any, progress: bool) -> list[Rewrite]:
    """Rewrites the dev examples; in half precision on GPUs that support it, as in serving."""
    half = model.device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    backend = TransformersBackend.around(model, tokenizer, task.eval_batch, half)
    rewriter = Rewriter(task.template, backend, Sampling(max_tokens=task.answer_tokens))
    return rewriter.rewrite([example.request for example in task.dev], progress)


def evaluate_dev(
    task: RewriterTask, model: Any, tokenizer: Any, progress: bool
) -> tuple[list[Rewrite], dict[str, float]]:
    """Rewrites of the dev examples, and their metrics."""
    rewrites = rewrite_dev(task, model, tokenizer, progress)
    count = len(rewrites)
    return rewrites, {
        **task.score_dev(rewrites),
        "parsed": sum(rewrite.status in ("rewritten", "none") for rewrite in rewrites) / count,
        "lines": sum(len(rewrite.lines) for rewrite in rewrites) / count,
        "tokens": sum(rewrite.tokens for rewrite in rewrites) / count,
        "distinct": len({rewrite.answer for rewrite in rewrites}) / count,
    }


def broadcast_metrics(metrics: Mapping[str, float]) -> dict[str, float]:
    """The main process's metrics in all processes, under the library's names."""
    shared = [dict(metrics)]
    if torch.distributed.is_initialized():
        torch.distributed.broadcast_object_list(shared)
    return {f"eval_{name}": value for name, value in shared[0].items()}


def evaluate_on_main(
    task: RewriterTask, model: Any, tokenizer: Any, recorder: MetricsRecorder | None, step: int, progress: bool
) -> dict[str, float]:
    """Evaluates dev in the main process; all processes get the metrics."""
    metrics = dict[str, float]()
    if is_main_process():
        rewrites, metrics = evaluate_dev(task, model, tokenizer, progress)
        if recorder is not None:
            recorder.dev_rewrites[step] = rewrites
            examples, shown = [task.dev[index] for index in task.shown], [rewrites[index] for index in task.shown]
            recorder.write_samples(step, metrics, examples, shown)
    return broadcast_metrics(metrics)


def check_finite(value: float, name: str, step: int) -> None:
    """Ends a run whose loss or gradient is NaN or infinite."""
    if not math.isfinite(value):
        raise RewriteError(
            f"the {name} became {value} after step {step}, so the run was stopped and its last good checkpoint kept; "
            "start it again in another output with a lower learning_rate, or with training.attention: eager"
        )


class DevEvalTrainer(Trainer):
    """Mixin before one of TRL's trainers."""

    _metrics: Any

    def __init__(self, task: RewriterTask, recorder: MetricsRecorder | None, progress: bool, **settings: Any) -> None:
        self._task, self._recorder, self._progress = task, recorder, progress
        self.evaluation_seconds = 0.0
        super().__init__(**settings)

    def training_step(self, *arguments: Any, **settings: Any) -> torch.Tensor:
        """Trains on one batch. A loss that is not finite ends the run; the library would average it away."""
        try:
            loss: torch.Tensor = super().training_step(*arguments, **settings)
        except torch.OutOfMemoryError as error:
            raise RewriteError(
                "no memory for a training step; set a smaller training.batch_size (with more "
                "gradient_accumulation_steps), or gradient_checkpointing"
            ) from error
        check_finite(float(loss), "loss", self.state.global_step)
        return loss

    def _clip_grad_norm(self, model: Any) -> Any:
        norm = super()._clip_grad_norm(model)  # type: ignore[no-untyped-call]
        if not self.args.fp16:  # there the scaler skips such steps and retries with a smaller scale
            check_finite(float(norm), "gradient", self.state.global_step)
        return norm

    def evaluate_policy(self) -> dict[str, float]:
        """Dev metrics of the current model, in all processes."""
        started = time.perf_counter()
        model: Any = self.accelerator.unwrap_model(self.model)
        step, tokenizer = self.state.global_step, self.processing_class
        metrics = evaluate_on_main(self._task, model, tokenizer, self._recorder, step, self._progress)
        self.evaluation_seconds += time.perf_counter() - started
        return metrics

    def evaluate_start(self, folder: Path) -> dict[str, float]:
        """Dev metrics before the first step: evaluated once, however often a run is resumed."""
        known = [read_start_metrics(folder, self._task.metric) if is_main_process() else {}]
        if torch.distributed.is_initialized():
            torch.distributed.broadcast_object_list(known)
        if known[0]:
            return known[0]
        metrics = self.evaluate_policy()
        if self._recorder is not None:
            self._recorder.metrics_log.write(0, metrics)
        return metrics

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Logs without the library's token count, which restarts when a run is resumed."""
        for metrics in self._metrics.values():
            metrics.pop("num_tokens", None)
        super().log(logs, start_time)

    def _determine_best_metric(self, metrics: dict[str, float], trial: Any) -> bool:
        """Never takes a collapsed model: unparseable answers are served as the raw query, and may score well."""
        if any(isinstance(callback, TrainingWatch) and callback.reason for callback in self.callback_handler.callbacks):
            return False
        return bool(super()._determine_best_metric(metrics, trial))

    def create_model_card(self, *arguments: Any, **settings: Any) -> None:
        """Writes nothing: the card is written with the rewriter."""

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        try:
            with disk_errors():
                super()._save_checkpoint(model, trial)
        except OSError:
            if is_main_process():
                remove_torn(Path(str(self.args.output_dir)))
            raise

    def _load_best_model(self) -> None:
        """Loads the best checkpoint from where the run's folder is now."""
        best = Path(str(self.args.output_dir)) / f"checkpoint-{self.state.best_global_step}"
        if not best.is_dir():
            raise RewriteError(f"the best checkpoint, {best}, is gone; train again in another output")
        self.state.best_model_checkpoint = str(best)
        super()._load_best_model()

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        """Refuses a checkpoint that lacks weights, other than those tied to others."""
        model: Any = self.accelerator.unwrap_model(self.model)
        missing = set(load_result.missing_keys) - set(getattr(model, "all_tied_weights_keys", {}))
        if wrong := [*missing, *load_result.unexpected_keys]:
            raise RewriteError(f"a checkpoint lacks or adds weights, for example {wrong[0]}")
