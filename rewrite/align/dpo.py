"""DPO by TRL: pairs of answers, the frozen reference's log-probabilities computed once before the first step.

Where several processes train, the reference stays in memory and is asked on the way.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from datasets import Dataset
from transformers import set_seed
from trl.trainer.dpo_config import DPOConfig
from trl.trainer.dpo_trainer import DPOTrainer

from rewrite.align.alignment_trainer import Aligned, Goal, Leg, align, frozen
from rewrite.align.collapse import CollapseWatch
from rewrite.align.pairs import Pair
from rewrite.align.settings import DpoSettings
from rewrite.backends.model_folder import load_tokenizer
from rewrite.errors import Unfit
from rewrite.sft import checkpoints
from rewrite.sft.callbacks import say
from rewrite.sft.dev_eval_trainer import Task
from rewrite.sft.distributed import first, world
from rewrite.sft.estimate import estimate
from rewrite.sft.rows import Rows
from rewrite.sft.run import (
    Run,
    Trained,
    load_policy,
    new_adapter,
    padded,
    quiet,
    shared_arguments,
    without_padding_mask,
)
from rewrite.sft.train import MANY, context
from rewrite.template import Template
from rewrite.types import Ask

SUNK = 3.0
"""Nats by which the chosen answers may have become less likely before it is named as the reason for a bad end."""


class DpoAligned(Aligned, DPOTrainer):
    """Trains as TRL does."""

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """With the distance from the reference, told by how unlikely its own answers have become."""
        metrics = self._metrics["train"]
        both = zip(metrics.get("rewards/chosen", ()), metrics.get("rewards/rejected", ()), strict=True)
        distances = [-(chosen + rejected) / 2 / float(self.beta) for chosen, rejected in both]
        if distances:
            metrics["kl"] = distances
        super().log(logs, start_time)


def train_dpo(goal: Goal, leg: Leg, pairs: Sequence[Pair], algo: DpoSettings, reference: Task | None = None) -> Trained:
    """Trains on pairs. `reference` is where it lies when it is not the policy's own start."""
    task, settings = goal.task, leg.settings
    quiet(leg.progress)
    tokenizer = padded(load_tokenizer(task.base))
    rows, size = _rows(task.template, tokenizer, pairs, min(settings.most_tokens, context(task.base)))
    if size.cut or size.dropped:
        say(f"most_tokens {settings.most_tokens}: {size.cut} pairs lose candidates, {size.dropped} are left out")
    folder = leg.work / "checkpoints"
    alone = world() == 1  # several processes would look for the reference's figures in each other's temporary folders
    arguments = DPOConfig(
        **shared_arguments(folder, settings, task.metric, leg.cuda) | {"logging_steps": leg.often(len(rows))},
        beta=algo.beta,
        loss_type=list(algo.loss),
        loss_weights=list(algo.weights) or None,
        label_smoothing=algo.label_smoothing,
        max_length=None,
        precompute_ref_log_probs=alone,
        dataset_num_proc=min(8, os.cpu_count() or 1) if len(pairs) > MANY else None,
    )
    if first():
        for line in estimate(task.base, settings, size, arguments.device, bool(arguments.bf16), world()).told():
            say(line)
        checkpoints.remove_torn(folder)
    arguments.distributed_state.wait_for_everyone()
    run, watch = Run(leg.work, settings, task.metric, leg.resume, leg.progress), CollapseWatch(goal.limits)
    set_seed(settings.seed)
    trainer = DpoAligned(
        task,
        run.recorder,
        leg.progress,
        model=load_policy(task.base, task.adapter, settings.attention),
        ref_model=None if reference is None else frozen(reference),
        args=arguments,
        train_dataset=rows,
        eval_dataset=rows.select(range(1)),
        processing_class=tokenizer,
        peft_config=new_adapter(settings, task.adapter),
        callbacks=[*run.callbacks(), watch],
    )
    model: Any = trainer.model
    without_padding_mask(trainer)
    if alone and "ref" in getattr(model, "peft_config", {}):
        model.delete_adapter("ref")  # its log-probabilities are known by now
    facts = {"pairs": len(rows), "candidates_cut": size.cut, "pairs_dropped": size.dropped}
    done = align(goal, leg, run, trainer, watch, facts)
    lost = sunk(trainer.state.log_history, algo.beta)
    if done.facts["kept"] == "start" and lost > SUNK:
        say(
            f"the chosen answers became less likely too, by {lost:.1f} nats each: give the loss `sft` more weight "
            "(it is a mean over tokens: from half of beta times an answer's tokens on it holds them), or a lower rate"
        )
    return done


def sunk(history: Sequence[Mapping[str, float]], beta: float) -> float:
    """By how many nats the chosen answers have become less likely than the reference has them, in the last quarter of
    the steps that told it."""
    told = [row["rewards/chosen"] for row in history if "rewards/chosen" in row]
    last = told[-max(1, len(told) // 4) :]
    return -sum(last) / len(last) / beta if last else 0.0


def _rows(template: Template, tokenizer: Any, pairs: Sequence[Pair], most_tokens: int) -> tuple[Dataset, Rows]:
    """Pairs as TRL takes them, without those that are too long (candidates go first, from the back); and their size,
    with how many lost candidates or were left out."""
    rows: dict[str, list[Any]] = {"prompt": [], "chosen": [], "rejected": []}
    lengths, cut = list[int](), 0
    for pair in pairs:
        answers = [[{"role": "assistant", "content": text}] for text in (pair.chosen, pair.rejected)]
        most = min(len(pair.candidates), template.candidates)
        for shown in range(most, -1, -1):
            prompt = template.render(Ask(pair.utterance, pair.candidates[:shown]))
            sizes = [len(tokenizer.apply_chat_template([*prompt, *each], return_dict=False)) for each in answers]
            if max(sizes) <= most_tokens:
                lengths.append(sum(sizes))
                cut += shown < most
                for name, value in zip(rows, (prompt, *answers), strict=True):
                    rows[name].append(value)
                break
    if not rows["prompt"]:
        raise Unfit(f"no pair fits into {most_tokens} tokens; raise training.most_tokens")
    left_out = len(pairs) - len(lengths)
    return Dataset.from_dict(rows), Rows(rows["prompt"], [], sum(lengths), max(lengths), cut, left_out)
