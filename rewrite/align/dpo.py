"""DPO with TRL. The reference's log-probabilities are computed once before the first step; where several processes
train, the reference stays in memory instead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from datasets import Dataset
from transformers import set_seed
from trl.trainer.dpo_config import DPOConfig
from trl.trainer.dpo_trainer import DPOTrainer

from rewrite.align.alignment_trainer import AlignmentTrainer, AlignTask, load_reference, run_alignment
from rewrite.align.collapse import CollapseWatch
from rewrite.align.pairs import Pair
from rewrite.align.settings import DpoSettings
from rewrite.errors import RewriteError
from rewrite.sft.callbacks import log_line
from rewrite.sft.dev_eval_trainer import RewriterTask
from rewrite.sft.distributed import is_main_process, world_size
from rewrite.sft.estimate import estimate
from rewrite.sft.models import load_policy, load_training_tokenizer, lora_config, silence_progress
from rewrite.sft.rows import TrainingRows
from rewrite.sft.run import RunOptions, TrainingResult, TrainingRun, training_arguments
from rewrite.sft.train import context_length, dataset_processes
from rewrite.speedups.right_padding import drop_padding_mask
from rewrite.template import Template
from rewrite.types import RewriteRequest

MAX_LOSS = 3.0
"""Nats that the chosen answers may lose before this is named as the reason of a bad end."""


class DpoAlignmentTrainer(AlignmentTrainer, DPOTrainer):
    """TRL's DPO trainer with the distance from the reference in its log."""

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Adds the KL distance, estimated by how unlikely the reference's own answers have become."""
        metrics = self._metrics["train"]
        both = zip(metrics.get("rewards/chosen", ()), metrics.get("rewards/rejected", ()), strict=True)
        distances = [-(chosen + rejected) / 2 / float(self.beta) for chosen, rejected in both]
        if distances:
            metrics["kl"] = distances
        super().log(logs, start_time)


def train_dpo(
    align_task: AlignTask,
    options: RunOptions,
    pairs: Sequence[Pair],
    algo: DpoSettings,
    reference: RewriterTask | None = None,
) -> TrainingResult:
    """Trains on pairs. `reference` is given where it is not the policy's own start."""
    task, settings = align_task.training, options.settings
    silence_progress(options.progress)
    tokenizer = load_training_tokenizer(task.base)
    dataset, rows = _build_rows(task.template, tokenizer, pairs, min(settings.max_tokens, context_length(task.base)))
    if rows.cut or rows.dropped:
        log_line(f"max_tokens {settings.max_tokens}: {rows.cut} pairs lose candidates, {rows.dropped} are left out")
    alone = world_size() == 1  # several processes would look for cached log-probabilities in each other's folders
    arguments = DPOConfig(
        **training_arguments(options, task.metric) | {"logging_steps": options.logging_steps(len(dataset))},
        beta=algo.beta,
        loss_type=list(algo.loss),
        loss_weights=list(algo.weights) or None,
        max_length=None,
        precompute_ref_log_probs=alone,
        dataset_num_proc=dataset_processes(len(pairs)),
    )
    if is_main_process():
        estimate(task.base, settings, rows, arguments.device, bool(arguments.bf16), world_size()).log()
    run = TrainingRun(options, task.metric, arguments.distributed_state.wait_for_everyone)
    watch = CollapseWatch(align_task.limits)
    set_seed(settings.seed)
    trainer = DpoAlignmentTrainer(
        task,
        run.recorder,
        options.progress,
        model=load_policy(task.base, task.adapter, settings.attention),
        ref_model=None if reference is None else load_reference(reference),
        args=arguments,
        train_dataset=dataset,
        eval_dataset=dataset.select(range(1)),
        processing_class=tokenizer,
        peft_config=lora_config(settings, task.adapter),
        callbacks=[*run.callbacks(), watch],
    )
    model: Any = trainer.model
    drop_padding_mask(trainer)
    if alone and "ref" in getattr(model, "peft_config", {}):
        model.delete_adapter("ref")  # its log-probabilities are computed by now
    facts = {"pairs": len(dataset), "candidates_cut": rows.cut, "pairs_dropped": rows.dropped}
    result = run_alignment(align_task, options, run, trainer, watch, facts)
    lost = lost_likelihood(trainer.state.log_history, algo.beta)
    if result.facts["kept"] == "start" and lost > MAX_LOSS:
        log_line(
            f"the chosen answers became less likely too, by {lost:.1f} nats each: give the loss `sft` more weight (it "
            "is a mean over tokens: half of beta times an answer's tokens is enough), or lower the learning rate"
        )
    return result


def lost_likelihood(history: Sequence[Mapping[str, float]], beta: float) -> float:
    """Nats by which the chosen answers are less likely than in the reference, over the last quarter of the log."""
    rewards = [row["rewards/chosen"] for row in history if "rewards/chosen" in row]
    last = rewards[-max(1, len(rewards) // 4) :]
    return -sum(last) / len(last) / beta if last else 0.0


def _build_rows(
    template: Template, tokenizer: Any, pairs: Sequence[Pair], max_tokens: int
) -> tuple[Dataset, TrainingRows]:
    """TRL's dataset of the pairs that fit (candidates are cut from the end first), and its size."""
    rows: dict[str, list[Any]] = {"prompt": [], "chosen": [], "rejected": []}
    lengths, cut = list[int](), 0
    for pair in pairs:
        answers = [[{"role": "assistant", "content": text}] for text in (pair.chosen, pair.rejected)]
        most = min(len(pair.candidates), template.candidates)
        for shown in range(most, -1, -1):
            prompt = template.render(RewriteRequest(pair.utterance, pair.candidates[:shown]))
            sizes = [len(tokenizer.apply_chat_template([*prompt, *answer], return_dict=False)) for answer in answers]
            if max(sizes) <= max_tokens:
                lengths.append(sum(sizes))
                cut += shown < most
                for name, value in zip(rows, (prompt, *answers), strict=True):
                    rows[name].append(value)
                break
    if not rows["prompt"]:
        raise RewriteError(f"no pair fits into {max_tokens} tokens; raise training.max_tokens")
    dropped = len(pairs) - len(lengths)
    return Dataset.from_dict(rows), TrainingRows(rows["prompt"], [], sum(lengths), max(lengths), cut, dropped)
