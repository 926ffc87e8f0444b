"""Parts shared by all alignment algorithms: evaluation on dev, collapse, and the choice of the model that is kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from peft import get_peft_model
from transformers import Trainer

from rewrite.align.blends import choose_blend
from rewrite.align.collapse import CollapseWatch
from rewrite.align.samples import AlignQuery, RewardFunction
from rewrite.align.settings import CollapseLimits
from rewrite.settings import SftSettings
from rewrite.sft.callbacks import log_line
from rewrite.sft.dev_eval_trainer import DevEvalTrainer, RewriterTask
from rewrite.sft.models import load_policy, lora_config
from rewrite.sft.run import RunOptions, TrainingResult, TrainingRun


@dataclass(frozen=True, slots=True)
class AlignTask:
    """Policy and dev set, queries, reward, and the limits of a collapse."""

    training: RewriterTask
    """Its base and adapter are the policy's start."""
    queries: Sequence[AlignQuery]
    reward: RewardFunction
    limits: CollapseLimits
    blends: tuple[float, ...] = ()
    """Shares of the way from the start that dev may choose."""


class AlignmentTrainer(DevEvalTrainer):
    """Mixin before TRL's trainers that have no dev set: retrieval on dev is the whole evaluation."""

    def evaluate(self, *_: Any, **__: Any) -> dict[str, float]:
        """Evaluates the policy on dev by retrieval."""
        metrics = self.evaluate_policy()
        Trainer.log(self, dict(metrics))  # not TRL's log, which would mix in the metrics of training
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        """Loads the policy: of a checkpoint that also holds the reference, the library loads the reference alone."""
        super()._load_from_checkpoint(resume_from_checkpoint, model)
        policy: Any = model or self.model
        if "ref" in getattr(policy, "peft_config", {}):
            policy.load_adapter(resume_from_checkpoint, "default", is_trainable=True)
            policy.set_adapter("default")


def run_alignment(
    task: AlignTask,
    options: RunOptions,
    run: TrainingRun,
    trainer: AlignmentTrainer,
    watch: CollapseWatch,
    facts: dict[str, Any],
) -> TrainingResult:
    """Trains until the end, early stopping or a collapse; keeps the start where no checkpoint beats it."""
    watch.start = trainer.evaluate_start(options.folder)
    reason = watch.stop_reason(run.state.get("log_history", ()))
    run.train(trainer, is_over=bool(reason))
    result = run.result(trainer, trainer.processing_class, facts)
    return keep_best(task, options.settings, result, watch.start, reason or watch.reason)


def keep_best(
    align_task: AlignTask,
    settings: SftSettings,
    result: TrainingResult,
    start: Mapping[str, float],
    collapse: str,
) -> TrainingResult:
    """The best of the best checkpoint, its blends and the start."""
    task = align_task.training
    before = start[f"eval_{task.metric}"]
    if collapse:
        log_line(f"stopped: {collapse}; the best model so far is kept")
    model = result.model
    if hasattr(model, "peft_config") and "ref" in model.peft_config:
        model.delete_adapter("ref")
    result = choose_blend(task, align_task.limits, align_task.blends, result, start)
    facts = result.facts | {"collapse": collapse, "start": dict(start), "kept": "best"}
    history = [{**start, "step": 0}, *result.history]
    if result.best > before:
        return replace(result, facts=facts, history=history)
    log_line(f"no checkpoint beats the start on dev ({task.metric} {before:.3f}): the start is kept")
    model = load_policy(task.base, task.adapter)
    if (adapter := lora_config(settings, task.adapter)) is not None:
        model = get_peft_model(model, adapter)
    facts |= {"kept": "start", "blend": 0.0}
    model = model.to(result.model.device)
    return replace(result, model=model, best=before, step=0, history=history, facts=facts)


def load_reference(task: RewriterTask) -> Any:
    """The policy's start as a frozen model with the adapter merged in."""
    model = load_policy(task.base, task.adapter)
    merged = model if task.adapter is None else model.merge_and_unload()
    return merged.requires_grad_(False).eval()
