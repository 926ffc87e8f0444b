"""What our trainers add to the library's: dev is rewritten and judged by retrieval, no number is trusted blindly."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import Trainer

from rewrite.backends.in_process import TransformersBackend
from rewrite.errors import Unfit
from rewrite.folder import disk_errors
from rewrite.rewriter import Rewriter
from rewrite.settings import Sampling
from rewrite.sft.callbacks import Recorder, Watch
from rewrite.sft.checkpoints import remove_torn
from rewrite.sft.distributed import first
from rewrite.sft.examples import Example
from rewrite.sft.metrics_log import FIGURES
from rewrite.template import Template
from rewrite.types import Rewrite

Judge = Callable[[Sequence[Rewrite]], Mapping[str, float]]
"""Rewrites of the dev examples, in their order -> metrics, by retrieval. Its trouble ends the run."""


@dataclass(frozen=True, slots=True)
class Task:
    """What is to be learned, and how it is judged."""

    base: Path
    template: Template
    train: Sequence[Example]
    dev: Sequence[Example]
    judge: Judge
    """Called in the first process only."""
    metric: str
    """The one of the judge's metrics that picks the best checkpoint."""
    shown: Sequence[int] = ()
    """The places of the dev examples whose rewrites are shown at every evaluation."""
    answer_tokens: int = 192
    """Tokens after which an answer is cut in evaluation."""
    eval_batch: int = 64
    adapter: Path | None = None
    """The adapter that is trained on; None: a new one, or the whole model."""


def rewritten(task: Task, model: Any, tokenizer: Any, progress: bool) -> list[Rewrite]:
    """What a model now writes for the dev examples; a GPU that can does it in half precision, as it will be served."""
    half = model.device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    backend = TransformersBackend.around(model, tokenizer, task.eval_batch, half)
    rewriter = Rewriter(task.template, backend, Sampling(most_tokens=task.answer_tokens))
    return rewriter.rewrite([example.ask for example in task.dev], progress)


def looked_at(task: Task, model: Any, tokenizer: Any, progress: bool) -> tuple[list[Rewrite], dict[str, float]]:
    """What a model now writes for the dev examples, what retrieval says of it, and how it writes."""
    rewrites = rewritten(task, model, tokenizer, progress)
    return rewrites, {
        **task.judge(rewrites),
        "parsed": sum(each.status in ("rewritten", "none") for each in rewrites) / len(rewrites),
        "lines": sum(len(each.lines) for each in rewrites) / len(rewrites),
        "tokens": sum(each.tokens for each in rewrites) / len(rewrites),
        "distinct": len({each.answer for each in rewrites}) / len(rewrites),
    }


def heard(figures: Mapping[str, float]) -> dict[str, float]:
    """The first process' figures in all of them, under the library's names."""
    found = [dict(figures)]
    if torch.distributed.is_initialized():
        torch.distributed.broadcast_object_list(found)
    return {f"eval_{name}": value for name, value in found[0].items()}


def judged_figures(
    task: Task, model: Any, tokenizer: Any, recorder: Recorder | None, step: int, progress: bool
) -> dict[str, float]:
    """What retrieval says of a model, and how it writes; the judge is asked in the first process, all hear it."""
    figures = dict[str, float]()
    if first():
        rewrites, figures = looked_at(task, model, tokenizer, progress)
        if recorder is not None:
            recorder.written[step] = rewrites
            shown = [(task.dev[place], rewrites[place]) for place in task.shown]
            recorder.samples(step, figures, [e for e, _ in shown], [r for _, r in shown])
    return heard(figures)


def start_figures(work: Path, metric: str) -> dict[str, float]:
    """The figures of a model before its first step, where a run has noted them."""
    path = work / FIGURES
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
        row: dict[str, float] = json.loads(line)
        if row["step"] == 0 and f"eval_{metric}" in row:
            return {name: value for name, value in row.items() if name.startswith("eval_")}
    return {}


def must_be_number(value: float, what: str, step: int) -> None:
    """Ends a run whose figures have become nonsense."""
    if not math.isfinite(value):
        raise Unfit(
            f"the {what} became {value} after step {step}, so the run was stopped and its last good checkpoint kept; "
            "start it again in another output with a lower learning_rate, or with training.attention: eager"
        )


class Judged(Trainer):
    """Stands in front of one of TRL's trainers."""

    _metrics: Any

    def __init__(self, task: Task, recorder: Recorder | None, progress: bool, **settings: Any) -> None:
        self._task, self._recorder, self._progress = task, recorder, progress
        self.judged_seconds = 0.0
        super().__init__(**settings)

    def training_step(self, *arguments: Any, **settings: Any) -> torch.Tensor:
        """One batch. A loss that is no number ends the run: the library would average it away and go on."""
        try:
            loss: torch.Tensor = super().training_step(*arguments, **settings)
        except torch.OutOfMemoryError as error:
            raise Unfit(
                "no memory for a training step; set a smaller training.batch_size (and accumulate), or "
                "gradient_checkpointing"
            ) from error
        must_be_number(float(loss), "loss", self.state.global_step)
        return loss

    def _clip_grad_norm(self, model: Any) -> Any:
        norm = super()._clip_grad_norm(model)  # type: ignore[no-untyped-call]
        if not self.args.fp16:  # there the scaler skips such steps, and tries again with less
            must_be_number(float(norm), "gradient", self.state.global_step)
        return norm

    def judgement(self) -> dict[str, float]:
        """What the judge says of the model as it is now, heard by all processes."""
        started = time.perf_counter()
        model: Any = self.accelerator.unwrap_model(self.model)
        step, tokenizer = self.state.global_step, self.processing_class
        figures = judged_figures(self._task, model, tokenizer, self._recorder, step, self._progress)
        self.judged_seconds += time.perf_counter() - started
        return figures

    def begin(self, work: Path) -> dict[str, float]:
        """What retrieval says of the model before the first step: judged once, however often a run is resumed."""
        known: list[dict[str, float]] = [start_figures(work, self._task.metric) if first() else {}]
        if torch.distributed.is_initialized():
            torch.distributed.broadcast_object_list(known)
        if known[0]:
            return known[0]
        figures = self.judgement()
        if self._recorder is not None:
            self._recorder.journal.figures(0, figures)
        return figures

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """The library's figures without its count of tokens, which begins anew when a run is resumed."""
        for metrics in self._metrics.values():
            metrics.pop("num_tokens", None)
        super().log(logs, start_time)

    def _determine_best_metric(self, metrics: dict[str, float], trial: Any) -> bool:
        """A model beyond hope is never the best: what cannot be read is served as the raw query, and may look fine."""
        if any(isinstance(each, Watch) and each.reason for each in self.callback_handler.callbacks):
            return False
        return bool(super()._determine_best_metric(metrics, trial))

    def create_model_card(self, *arguments: Any, **settings: Any) -> None:
        """Ours is written with the rewriter."""

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """A checkpoint; one that the disk has no room for is not left lying around."""
        try:
            with disk_errors():
                super()._save_checkpoint(model, trial)
        except OSError:
            if first():
                remove_torn(Path(str(self.args.output_dir)))
            raise

    def _load_best_model(self) -> None:
        """The best checkpoint, wherever the run's folder lies by now."""
        best = Path(str(self.args.output_dir)) / f"checkpoint-{self.state.best_global_step}"
        if not best.is_dir():
            raise Unfit(f"the best checkpoint, {best}, is gone; train again in another output")
        self.state.best_model_checkpoint = str(best)
        super()._load_best_model()

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        """Weights that are tied to others come with those; any other that a checkpoint lacks must not go unseen."""
        model: Any = self.accelerator.unwrap_model(self.model)
        missing = set(load_result.missing_keys) - set(getattr(model, "all_tied_weights_keys", {}))
        if missing or load_result.unexpected_keys:
            raise Unfit(
                f"a checkpoint lacks or adds weights, for example {[*missing, *load_result.unexpected_keys][0]}"
            )
