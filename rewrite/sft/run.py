"""A training run in a folder: resuming, logging, the end, and the arguments that all trainers share."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import EarlyStoppingCallback, PrinterCallback, ProgressCallback
from transformers.integrations.integration_utils import TensorBoardCallback
from transformers.trainer_callback import TrainerCallback, TrainerState

from rewrite.errors import Interrupted, RewriteError
from rewrite.settings import SftSettings
from rewrite.sft import checkpoints
from rewrite.sft.callbacks import EvaluationSchedule, GracefulStop, MetricsRecorder, ProgressBar
from rewrite.sft.dev_eval_trainer import DevEvalTrainer
from rewrite.sft.distributed import is_main_process, world_size
from rewrite.sft.metrics_log import MetricsLog
from rewrite.types import Rewrite

NEVER = 1_000_000_000


@dataclass(frozen=True, slots=True)
class TrainingResult:
    """A finished run, its best model loaded."""

    model: Any
    tokenizer: Any
    best: float
    step: int
    history: list[dict[str, float]]
    facts: dict[str, Any]
    written: Mapping[int, Sequence[Rewrite]] = field(default_factory=dict)
    """Rewrites of dev by step, since the run was started or resumed."""


@dataclass(frozen=True, slots=True)
class RunOptions:
    """Settings and folder of a run."""

    settings: SftSettings
    folder: Path
    resume: bool
    progress: bool
    cuda: bool

    @property
    def checkpoints(self) -> Path:
        """Folder of the checkpoints."""
        return self.folder / "checkpoints"

    def logging_steps(self, rows: int) -> int:
        """Steps between two log lines: fifty lines per run, or one every ten steps."""
        batch = self.settings.batch_size * self.settings.gradient_accumulation_steps * world_size()
        return max(1, min(10, int(rows * self.settings.epochs / batch) // 50))


class TrainingRun:
    """One leg of a run in a folder: the checkpoint that it resumes from, the metrics log and the callbacks."""

    def __init__(self, options: RunOptions, metric: str, wait: Callable[[], None], every: int = 1) -> None:
        """Removes torn checkpoints and finds the last one, in all processes, which `wait` for each other. No checkpoint
        comes between `every` steps that learn from answers drawn before the first of them."""
        if is_main_process():
            checkpoints.remove_torn(options.checkpoints)
        wait()
        self._options, self._settings, self.metric, self._every = options, options.settings, metric, every
        self.last = checkpoints.last(options.checkpoints) if options.resume else None
        self.state = checkpoints.read_state(self.last) if self.last else {}
        log = MetricsLog(options.folder, int(self.state.get("global_step", 0))) if is_main_process() else None
        self.recorder = MetricsRecorder(log) if log else None
        self.stopper = GracefulStop(every)

    def callbacks(self) -> list[TrainerCallback]:
        """Evaluation schedule, graceful stop and early stopping."""
        schedule = EvaluationSchedule(self._settings.evaluations, self._every)
        return [schedule, self.stopper, EarlyStoppingCallback(self._settings.patience)]

    def train(self, trainer: DevEvalTrainer, is_over: bool = False) -> None:
        """Trains to the end, or loads the best model where nothing is left to train (or the run `is_over`)."""
        self._replace_callbacks(trainer)
        patience = self._settings.patience
        if self.last and (is_over or checkpoints.is_done(self.state, f"eval_{self.metric}", patience)):
            trainer.state = TrainerState.load_from_json(str(self.last / checkpoints.STATE))
            if trainer.state.best_global_step:
                trainer._load_best_model()
        else:
            with self.stopper:
                trainer.train(resume_from_checkpoint=str(self.last) if self.last else None)
        self.raise_if_stopped(trainer.state)

    def raise_if_stopped(self, state: Any) -> None:
        """Raises Interrupted after a graceful stop."""
        if self.stopper.stopped:
            raise Interrupted(
                f"stopped after step {state.global_step} of {state.max_steps}; a checkpoint is kept, resume with "
                "`--resume`"
            )

    def _replace_callbacks(self, trainer: DevEvalTrainer) -> None:
        """Replaces the library's callbacks, which print among the command's results."""
        trainer.remove_callback(PrinterCallback)
        trainer.remove_callback(ProgressCallback)
        if self.recorder is not None:
            trainer.add_callback(self.recorder)
            if "tensorboard" in self._settings.report_to:
                from torch.utils.tensorboard import SummaryWriter

                trainer.add_callback(TensorBoardCallback(SummaryWriter(str(self._options.folder / "tensorboard"))))  # type: ignore[no-untyped-call]
        if self._options.progress and is_main_process():
            trainer.add_callback(ProgressBar)

    def result(self, trainer: DevEvalTrainer, tokenizer: Any, facts: dict[str, Any]) -> TrainingResult:
        """The result of a trainer's run."""
        model: Any = trainer.accelerator.unwrap_model(trainer.model)
        return self.make_result(model, tokenizer, trainer.state, trainer.evaluation_seconds, facts)

    def make_result(
        self, model: Any, tokenizer: Any, state: Any, evaluation_seconds: float, facts: dict[str, Any]
    ) -> TrainingResult:
        """The result of a run, with the facts that every training has."""
        history = [row for row in state.log_history if f"eval_{self.metric}" in row]
        if not history:
            raise RuntimeError("the run ended without an evaluation")
        best = -math.inf if state.best_metric is None else float(state.best_metric)  # None: all had collapsed
        losses = [row["loss"] for row in state.log_history if "loss" in row]
        facts = facts | {
            "steps": state.max_steps,
            "done": state.global_step,
            "parameters": sum(weight.numel() for weight in model.parameters()),
            "trained_parameters": sum(weight.numel() for weight in model.parameters() if weight.requires_grad),
            "first_loss": losses[0],
            "last_loss": losses[-1],
            "seconds": self.recorder.metrics_log.seconds if self.recorder else 0.0,
            "evaluation_seconds": round(evaluation_seconds, 1),
        }
        rewrites = self.recorder.dev_rewrites if self.recorder else {}
        return TrainingResult(model, tokenizer, best, int(state.best_global_step or 0), history, facts, rewrites)


def training_arguments(options: RunOptions, metric: str) -> dict[str, Any]:
    """The library's arguments that all trainers share."""
    settings, cuda = options.settings, options.cuda
    if cuda and world_size() == 1 and torch.cuda.device_count() > 1:
        count = torch.cuda.device_count()
        raise RewriteError(
            f"there are {count} GPUs; start `accelerate launch --num_processes {count} $(which rewrite-train) …`, "
            "or set CUDA_VISIBLE_DEVICES=0 to use one"
        )
    half = cuda and torch.cuda.is_bf16_supported(including_emulation=False)
    return {
        "output_dir": str(options.checkpoints),
        "num_train_epochs": settings.epochs,
        "per_device_train_batch_size": settings.batch_size,
        "per_device_eval_batch_size": settings.batch_size,
        "gradient_accumulation_steps": settings.gradient_accumulation_steps,
        "learning_rate": settings.learning_rate,
        "lr_scheduler_type": settings.schedule,
        "warmup_steps": settings.warmup,  # a float: a share of all steps
        "weight_decay": settings.weight_decay,
        "gradient_checkpointing": settings.gradient_checkpointing,
        "bf16": half,
        "fp16": cuda and not half,
        "use_cpu": not cuda,
        "ddp_find_unused_parameters": False,
        "seed": settings.seed,
        "eval_strategy": "steps",
        "eval_steps": NEVER,  # EvaluationSchedule requests evaluations and checkpoints
        "save_strategy": "steps",
        "save_steps": NEVER,
        "save_total_limit": 2,
        "load_best_model_at_end": True,
        "metric_for_best_model": f"eval_{metric}",
        "greater_is_better": True,
        "restore_callback_states_from_checkpoint": True,  # early stopping keeps its count
        "logging_steps": 10,
        "logging_first_step": True,
        "disable_tqdm": True,
        "report_to": [name for name in settings.report_to if name != "tensorboard"] or "none",
        "dataloader_pin_memory": cuda,
    }
