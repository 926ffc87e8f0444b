"""Supervised fine-tuning with TRL: dev is evaluated by retrieval, the best checkpoint is kept, a run can be resumed."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoConfig, set_seed
from transformers.utils.import_utils import is_flash_attn_2_available
from trl.trainer.sft_config import SFTConfig
from trl.trainer.sft_trainer import SFTTrainer

from rewrite.backends.model_folder import loading
from rewrite.sft.callbacks import TrainingWatch, log_line
from rewrite.sft.dev_eval_trainer import DevEvalTrainer, RewriterTask, check_finite
from rewrite.sft.distributed import is_main_process, world_size
from rewrite.sft.estimate import estimate
from rewrite.sft.models import load_policy, load_training_tokenizer, lora_config, silence_progress
from rewrite.sft.rows import TrainingRows, build_rows
from rewrite.sft.run import NEVER, RunOptions, TrainingResult, TrainingRun, training_arguments
from rewrite.speedups.right_padding import drop_padding_mask

MANY_ROWS = 5_000
"""Rows from which on several processes prepare them."""


class RewriterTrainer(DevEvalTrainer, SFTTrainer):
    """TRL's trainer of supervised fine-tuning, with dev evaluated by retrieval too."""

    def evaluation_loop(self, *arguments: Any, **settings: Any) -> Any:
        """Adds retrieval metrics to the library's loss. Training continues with its own random numbers."""
        device = self.args.device
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            output: Any = super().evaluation_loop(*arguments, **settings)
        check_finite(float(output.metrics["eval_loss"]), "loss on dev", self.state.global_step)
        output.metrics.update(self.evaluate_policy())
        return output


def train(task: RewriterTask, options: RunOptions, watch: TrainingWatch | None = None) -> TrainingResult:
    """Trains in the folder's checkpoints; with `resume` it continues a stopped or killed run.

    A `watch` gets the dev metrics before the first step. A run that it ended is not trained further when resumed.
    """
    settings = options.settings
    silence_progress(options.progress)
    tokenizer = load_training_tokenizer(task.base)
    max_tokens = min(settings.max_tokens, context_length(task.base))
    rows = build_rows(task.template, tokenizer, task.train, max_tokens)
    dev = build_rows(task.template, tokenizer, task.dev, max_tokens)
    if rows.cut or rows.dropped:
        log_line(f"max_tokens {settings.max_tokens}: {rows.cut} examples lose candidates, {rows.dropped} are left out")
    arguments = _arguments(options, task.metric, len(rows.prompts))
    if is_main_process():
        actual = replace(settings, packing=bool(arguments.packing))
        estimate(task.base, actual, rows, arguments.device, bool(arguments.bf16), world_size()).log()
    run = TrainingRun(options, task.metric, arguments.distributed_state.wait_for_everyone)
    set_seed(settings.seed)  # before the adapter is made: it starts at random
    trainer = RewriterTrainer(
        task,
        run.recorder,
        options.progress,
        model=load_policy(task.base, task.adapter, settings.attention, bool(arguments.packing)),
        args=arguments,
        train_dataset=_dataset(rows),
        eval_dataset=_dataset(dev),
        processing_class=tokenizer,
        peft_config=lora_config(settings, task.adapter),
        callbacks=[*run.callbacks(), *([watch] if watch else [])],
    )
    drop_padding_mask(trainer)
    if watch is not None:
        watch.start = trainer.evaluate_start(options.folder)
        watch.reason = watch.stop_reason(run.state.get("log_history", ()))
    run.train(trainer, is_over=watch is not None and bool(watch.reason))
    facts = {
        "examples": len(rows.prompts),
        "tokens": rows.tokens,
        "candidates_cut": rows.cut,
        "dropped": rows.dropped,
    }
    return run.result(trainer, tokenizer, facts)


def context_length(base: Path) -> int:
    """Tokens that the model can attend to together."""
    with loading(base):
        config = AutoConfig.from_pretrained(base, local_files_only=True)
    return getattr(config.get_text_config(), "max_position_embeddings", None) or NEVER


def dataset_processes(rows: int) -> int | None:
    """Number of processes that prepare the rows; None: this one alone."""
    return min(8, os.cpu_count() or 1) if rows > MANY_ROWS else None


def _dataset(rows: TrainingRows) -> Dataset:
    return Dataset.from_dict({"prompt": rows.prompts, "completion": rows.completions})


def _arguments(options: RunOptions, metric: str, rows: int) -> SFTConfig:
    packing = options.settings.packing
    if packing is None:
        packing = options.cuda and bool(is_flash_attn_2_available())
    return SFTConfig(
        **training_arguments(options, metric),
        max_length=options.settings.max_tokens,
        packing=packing,
        completion_only_loss=True,
        dataset_num_proc=dataset_processes(rows),
    )
