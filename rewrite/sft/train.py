"""Supervised fine-tuning with TRL's trainer: dev is judged by retrieval, the best checkpoint is kept, a run resumes."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from datasets.utils import logging as datasets_logging
from peft import LoraConfig
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    EarlyStoppingCallback,
    PrinterCallback,
    ProgressCallback,
    set_seed,
)
from transformers.integrations.integration_utils import TensorBoardCallback
from transformers.trainer_callback import TrainerState
from transformers.utils import logging as transformers_logging
from transformers.utils.import_utils import is_flash_attn_2_available
from trl.trainer.sft_config import SFTConfig

from rewrite.backends.model_folder import load_tokenizer, loading
from rewrite.errors import Interrupted, Unfit
from rewrite.settings import SftSettings
from rewrite.sft import checkpoints
from rewrite.sft.estimate import estimate
from rewrite.sft.journal import Journal
from rewrite.sft.ranks import first, world
from rewrite.sft.rows import Rows, make_rows
from rewrite.sft.trainer import RewriterTrainer, Task
from rewrite.sft.watch import Bar, Recorder, Rhythm, Stopper, say

MANY = 5_000
"""Rows from which on several processes prepare them."""
NEVER = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Trained:
    """A finished run, its best model loaded."""

    model: Any
    tokenizer: Any
    best: float
    step: int
    history: list[dict[str, float]]
    facts: dict[str, Any]


def train(task: Task, settings: SftSettings, work: Path, resume: bool, progress: bool, cuda: bool) -> Trained:
    """Trains in `work/checkpoints`; with `resume` it goes on where a stopped or killed run left off."""
    _quiet(progress)
    tokenizer = padded(load_tokenizer(task.base))
    most = min(settings.most_tokens, _context(task.base))
    rows = make_rows(task.template, tokenizer, task.train, most)
    dev = make_rows(task.template, tokenizer, task.dev, most)
    if rows.cut or rows.dropped:
        say(f"most_tokens {settings.most_tokens}: {rows.cut} examples lose candidates, {rows.dropped} are left out")
    folder = work / "checkpoints"
    arguments = _arguments(folder, settings, task.metric, len(rows.prompts), cuda)
    if first():
        for line in estimate(task.base, settings, rows, arguments.device, bool(arguments.bf16), world()).told():
            say(line)
        checkpoints.remove_torn(folder)
    arguments.distributed_state.wait_for_everyone()
    last = checkpoints.last(folder) if resume else None
    state = checkpoints.read_state(last) if last else {}
    recorder = Recorder(Journal(work, int(state.get("global_step", 0)))) if first() else None
    stopper = Stopper()
    set_seed(settings.seed)  # before the adapter is made: it starts at random
    trainer = RewriterTrainer(
        task,
        recorder,
        progress,
        model=load_base(task.base, bool(arguments.packing)),
        args=arguments,
        train_dataset=_dataset(rows),
        eval_dataset=_dataset(dev),
        processing_class=tokenizer,
        peft_config=_lora(settings),
        callbacks=[Rhythm(settings.evaluations), stopper, EarlyStoppingCallback(settings.patience)],
    )
    _listeners(trainer, recorder, work, settings, progress and first())
    if last and checkpoints.is_done(state, f"eval_{task.metric}", settings.patience):
        trainer.state = TrainerState.load_from_json(str(last / checkpoints.STATE))
        trainer._load_best_model()
    else:
        with stopper:
            trainer.train(resume_from_checkpoint=str(last) if last else None)
    if stopper.stopped:
        done, steps = trainer.state.global_step, trainer.state.max_steps
        raise Interrupted(f"stopped after step {done} of {steps}; a checkpoint is kept, `--resume` goes on from it")
    return _trained(trainer, tokenizer, rows, task.metric, recorder)


def padded(tokenizer: Any) -> Any:
    """The tokenizer with padding that is not its end token: else a model would not learn where an answer ends."""
    if tokenizer.pad_token_id is None or tokenizer.pad_token_id == tokenizer.eos_token_id:
        spare = [token for token in ("<|endoftext|>", "<pad>", "<unk>") if token in tokenizer.get_vocab()]
        tokenizer.pad_token = next((token for token in spare if token != tokenizer.eos_token), tokenizer.eos_token)
    return tokenizer


def load_base(base: Path, flash: bool) -> Any:
    """The model in float32: the optimizer needs the precision, mixed precision gives the speed."""
    how = {"attn_implementation": "flash_attention_2"} if flash and is_flash_attn_2_available() else {}
    with loading(base):
        return AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32, local_files_only=True, **how)


def _context(base: Path) -> int:
    """Tokens that the model can look at together."""
    with loading(base):
        config: Any = AutoConfig.from_pretrained(base, local_files_only=True)
    return getattr(config.get_text_config(), "max_position_embeddings", None) or NEVER


def _quiet(progress: bool) -> None:
    """No bars where nobody looks."""
    if not progress:
        datasets_logging.disable_progress_bar()
        transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]


def _listeners(
    trainer: RewriterTrainer, recorder: Recorder | None, work: Path, settings: SftSettings, progress: bool
) -> None:
    """Ours in place of the library's, which print among the command's results."""
    trainer.remove_callback(PrinterCallback)
    trainer.remove_callback(ProgressCallback)
    if recorder is not None:
        trainer.add_callback(recorder)
        if "tensorboard" in settings.report_to:
            from torch.utils.tensorboard import SummaryWriter

            trainer.add_callback(TensorBoardCallback(SummaryWriter(str(work / "tensorboard"))))  # type: ignore[no-untyped-call]
    if progress:
        trainer.add_callback(Bar)


def _dataset(rows: Rows) -> Dataset:
    return Dataset.from_dict({"prompt": rows.prompts, "completion": rows.completions})


def _trained(trainer: RewriterTrainer, tokenizer: Any, rows: Rows, metric: str, recorder: Recorder | None) -> Trained:
    state = trainer.state
    if state.best_metric is None or state.best_global_step is None:
        raise RuntimeError("the run ended without an evaluation")
    model: Any = trainer.accelerator.unwrap_model(trainer.model)
    losses = [row["loss"] for row in state.log_history if "loss" in row]
    facts = {
        "examples": len(rows.prompts),
        "tokens": rows.tokens,
        "candidates_cut": rows.cut,
        "dropped": rows.dropped,
        "steps": state.max_steps,
        "done": state.global_step,
        "parameters": sum(each.numel() for each in model.parameters()),
        "trained_parameters": sum(each.numel() for each in model.parameters() if each.requires_grad),
        "first_loss": losses[0],
        "last_loss": losses[-1],
        "seconds": recorder.journal.seconds if recorder else 0.0,
        "evaluation_seconds": round(trainer.judged_seconds, 1),
    }
    history = [row for row in state.log_history if f"eval_{metric}" in row]
    return Trained(model, tokenizer, float(state.best_metric), int(state.best_global_step), history, facts)


def _lora(settings: SftSettings) -> LoraConfig | None:
    if settings.method == "full":
        return None
    lora = settings.lora
    return LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules="all-linear",
        task_type="CAUSAL_LM",
    )


def _arguments(folder: Path, settings: SftSettings, metric: str, rows: int, cuda: bool) -> SFTConfig:
    if cuda and world() == 1 and torch.cuda.device_count() > 1:
        count = torch.cuda.device_count()
        raise Unfit(
            f"there are {count} GPUs; start `accelerate launch --num_processes {count} $(which rewrite-train) sft …`, "
            "or set CUDA_VISIBLE_DEVICES=0 to use one"
        )
    half = cuda and torch.cuda.is_bf16_supported(including_emulation=False)
    packing = settings.packing if settings.packing is not None else cuda and bool(is_flash_attn_2_available())
    return SFTConfig(
        output_dir=str(folder),
        num_train_epochs=settings.epochs,
        per_device_train_batch_size=settings.batch_size,
        per_device_eval_batch_size=settings.batch_size,
        gradient_accumulation_steps=settings.accumulate,
        learning_rate=settings.learning_rate,
        lr_scheduler_type=settings.schedule,
        warmup_steps=settings.warmup,  # a float: a share of all steps
        weight_decay=settings.weight_decay,
        max_length=settings.most_tokens,
        packing=packing,
        completion_only_loss=True,
        gradient_checkpointing=settings.gradient_checkpointing,
        dataset_num_proc=min(8, os.cpu_count() or 1) if rows > MANY else None,
        bf16=half,
        fp16=cuda and not half,
        use_cpu=not cuda,
        ddp_find_unused_parameters=False,
        seed=settings.seed,
        eval_strategy="steps",
        eval_steps=NEVER,  # the rhythm is ours
        save_strategy="steps",
        save_steps=NEVER,
        save_total_limit=2,
        load_best_model_at_end=True,
        metric_for_best_model=f"eval_{metric}",
        greater_is_better=True,
        restore_callback_states_from_checkpoint=True,  # early stopping goes on counting
        logging_steps=10,
        logging_first_step=True,
        disable_tqdm=True,
        report_to=[name for name in settings.report_to if name != "tensorboard"] or "none",
        dataloader_pin_memory=cuda,
    )
