"""What every alignment by TRL shares: dev judged before the first step and on the way, the distance, the collapse."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from peft import get_peft_model
from transformers import Trainer

from rewrite.align.blends import blended
from rewrite.align.collapse import CollapseWatch
from rewrite.align.query import Query, Reward
from rewrite.align.settings import AlignTraining, Limits
from rewrite.sft.callbacks import say
from rewrite.sft.dev_eval_trainer import Judged, Task
from rewrite.sft.distributed import world
from rewrite.sft.run import Run, Trained, load_policy, new_adapter


@dataclass(frozen=True, slots=True)
class Goal:
    """What is to become better, how that is told, and when to give up."""

    task: Task
    """Its base and adapter are where the policy starts."""
    queries: Sequence[Query]
    reward: Reward
    limits: Limits


@dataclass(frozen=True, slots=True)
class Leg:
    """How and where a run goes."""

    settings: AlignTraining
    work: Path
    resume: bool
    progress: bool
    cuda: bool

    def often(self, rows: int) -> int:
        """Steps between two lines of figures: fifty lines a run, or one every ten steps."""
        batch = self.settings.batch_size * self.settings.accumulate * world()
        return max(1, min(10, int(rows * self.settings.epochs / batch) // 50))


class Aligned(Judged):
    """Stands in front of TRL's trainers that know no dev set: the judge is all the evaluation."""

    def evaluate(self, *_: Any, **__: Any) -> dict[str, float]:
        """What retrieval says of the policy."""
        metrics = self.judgement()
        Trainer.log(self, dict(metrics))  # past TRL's, which would mix the figures of training in
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        """The policy itself: of a checkpoint that also holds the reference, the library loads the reference alone."""
        super()._load_from_checkpoint(resume_from_checkpoint, model)
        policy: Any = model or self.model
        if "ref" in getattr(policy, "peft_config", {}):
            policy.load_adapter(resume_from_checkpoint, "default", is_trainable=True)
            policy.set_adapter("default")


def align(goal: Goal, leg: Leg, run: Run, trainer: Aligned, watch: CollapseWatch, facts: dict[str, Any]) -> Trained:
    """Trains to the end, to patience's end or to collapse; the start is kept where no checkpoint beats it."""
    watch.start = trainer.begin(leg.work)
    over = watch.over(run.state.get("log_history", ()))
    run.go(trainer, over=bool(over))
    tokenizer = trainer.processing_class
    done = run.trained(trainer, tokenizer, facts)
    return kept(goal, leg.settings, done, watch.start, over or watch.reason)


def kept(goal: Goal, settings: AlignTraining, trained: Trained, start: Mapping[str, float], collapse: str) -> Trained:
    """The best one of the best checkpoint, its blends and the start, and what there is to say of it."""
    task = goal.task
    before = start[f"eval_{task.metric}"]
    if collapse:
        say(f"stopped: {collapse}; the best model so far is kept")
    model = trained.model
    if hasattr(model, "peft_config") and "ref" in model.peft_config:
        model.delete_adapter("ref")  # the reference has served
    trained = blended(task, goal.limits, settings.blends, trained, start)
    facts = trained.facts | {"collapse": collapse, "start": dict(start), "kept": "best"}
    history = [{**start, "step": 0}, *trained.history]
    if trained.best > before:
        return replace(trained, facts=facts, history=history)
    say(f"no checkpoint beats the start on dev ({task.metric} {before:.3f}): the start is kept")
    model = load_policy(task.base, task.adapter)
    if (fresh := new_adapter(settings, task.adapter)) is not None:
        model = get_peft_model(model, fresh)
    model = model.to(trained.model.device)
    return Trained(
        model, trained.tokenizer, before, 0, history, facts | {"kept": "start", "blend": 0.0}, trained.written
    )


def frozen(task: Task) -> Any:
    """A policy's start as a whole model that stays as it is: the reference."""
    model = load_policy(task.base, task.adapter)
    whole = model if task.adapter is None else model.merge_and_unload()
    return whole.requires_grad_(False).eval()
