"""Supervised fine-tuning with TRL's trainer: dev is judged by retrieval, the best checkpoint is kept, a run resumes."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from datasets import Dataset
from transformers import AutoConfig, set_seed
from transformers.utils.import_utils import is_flash_attn_2_available
from trl.trainer.sft_config import SFTConfig

from rewrite.backends.model_folder import load_tokenizer, loading
from rewrite.settings import SftSettings
from rewrite.sft import checkpoints
from rewrite.sft.callbacks import Watch, say
from rewrite.sft.dev_eval_trainer import Task
from rewrite.sft.distributed import first, world
from rewrite.sft.estimate import estimate
from rewrite.sft.rows import Rows, make_rows
from rewrite.sft.run import (
    NEVER,
    Run,
    Trained,
    load_policy,
    new_adapter,
    padded,
    quiet,
    shared_arguments,
    without_padding_mask,
)
from rewrite.sft.trainer import RewriterTrainer

MANY = 5_000
"""Rows from which on several processes prepare them."""


def train(
    task: Task, settings: SftSettings, work: Path, resume: bool, progress: bool, cuda: bool, watch: Watch | None = None
) -> Trained:
    """Trains in `work/checkpoints`; with `resume` it goes on where a stopped or killed run left off.

    A `watch` is told how dev looks before the first step. A run that it ended is not trained on when it is resumed.
    """
    quiet(progress)
    tokenizer = padded(load_tokenizer(task.base))
    most = min(settings.most_tokens, context(task.base))
    rows = make_rows(task.template, tokenizer, task.train, most)
    dev = make_rows(task.template, tokenizer, task.dev, most)
    if rows.cut or rows.dropped:
        say(f"most_tokens {settings.most_tokens}: {rows.cut} examples lose candidates, {rows.dropped} are left out")
    folder = work / "checkpoints"
    arguments = _arguments(folder, settings, task.metric, len(rows.prompts), cuda)
    if first():
        as_it_goes = replace(settings, packing=bool(arguments.packing))
        for line in estimate(task.base, as_it_goes, rows, arguments.device, bool(arguments.bf16), world()).told():
            say(line)
        checkpoints.remove_torn(folder)
    arguments.distributed_state.wait_for_everyone()
    run = Run(work, settings, task.metric, resume, progress)
    set_seed(settings.seed)  # before the adapter is made: it starts at random
    trainer = RewriterTrainer(
        task,
        run.recorder,
        progress,
        model=load_policy(task.base, task.adapter, settings.attention, bool(arguments.packing)),
        args=arguments,
        train_dataset=_dataset(rows),
        eval_dataset=_dataset(dev),
        processing_class=tokenizer,
        peft_config=new_adapter(settings, task.adapter),
        callbacks=[*run.callbacks(), *([watch] if watch else [])],
    )
    without_padding_mask(trainer)
    if watch is not None:
        watch.start = trainer.begin(work)
        watch.reason = watch.over(run.state.get("log_history", ()))
    run.go(trainer, over=watch is not None and bool(watch.reason))
    facts = {
        "examples": len(rows.prompts),
        "tokens": rows.tokens,
        "candidates_cut": rows.cut,
        "dropped": rows.dropped,
    }
    return run.trained(trainer, tokenizer, facts)


def context(base: Path) -> int:
    """Tokens that the model can look at together."""
    with loading(base):
        config = AutoConfig.from_pretrained(base, local_files_only=True)
    return getattr(config.get_text_config(), "max_position_embeddings", None) or NEVER


def _dataset(rows: Rows) -> Dataset:
    return Dataset.from_dict({"prompt": rows.prompts, "completion": rows.completions})


def _arguments(folder: Path, settings: SftSettings, metric: str, rows: int, cuda: bool) -> SFTConfig:
    packing = settings.packing if settings.packing is not None else cuda and bool(is_flash_attn_2_available())
    return SFTConfig(
        **shared_arguments(folder, settings, metric, cuda),
        max_length=settings.most_tokens,
        packing=packing,
        completion_only_loss=True,
        dataset_num_proc=min(8, os.cpu_count() or 1) if rows > MANY else None,
    )
