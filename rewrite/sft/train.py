"""Supervised fine-tuning with TRL's trainer: dev is judged by retrieval, the best checkpoint is kept, a run resumes."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from datasets.utils import logging as datasets_logging
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer, EarlyStoppingCallback
from transformers.trainer_utils import get_last_checkpoint
from trl.trainer.sft_config import SFTConfig
from trl.trainer.sft_trainer import SFTTrainer

from rewrite.backends.in_process import TransformersBackend
from rewrite.errors import Interrupted, Unfit
from rewrite.rewriter import Rewriter
from rewrite.settings import Sampling, SftSettings
from rewrite.sft.examples import Example
from rewrite.sft.rows import Rows, make_rows
from rewrite.sft.watch import Stopper, Writer
from rewrite.template import Template
from rewrite.types import Rewrite

Judge = Callable[[Sequence[Rewrite]], Mapping[str, float]]
"""Rewrites of the dev examples, in their order -> metrics, by retrieval. Its trouble ends the run."""
MANY = 5_000
"""Rows from which on several processes prepare them."""


@dataclass(frozen=True, slots=True)
class Task:
    """What is to be learned, and how it is judged."""

    base: Path
    template: Template
    train: Sequence[Example]
    dev: Sequence[Example]
    judge: Judge
    metric: str
    """The one of the judge's metrics that picks the best checkpoint."""
    answer_tokens: int = 192
    """Tokens after which an answer is cut in evaluation."""
    eval_batch: int = 64
    samples: int = 4
    """Rewrites shown at every evaluation."""


@dataclass(frozen=True, slots=True)
class Trained:
    """A finished run."""

    model: Any
    tokenizer: Any
    best: float
    step: int
    history: list[dict[str, float]]
    facts: dict[str, Any]


def load_base(base: Path, cuda: bool) -> tuple[Any, Any]:
    """Model and tokenizer, in float32: the optimizer needs the precision, mixed precision gives the speed."""
    tokenizer = AutoTokenizer.from_pretrained(base)
    if not tokenizer.chat_template:
        raise Unfit(f"the base model in {base} has no chat template; take an instruct model")
    if tokenizer.pad_token_id is None or tokenizer.pad_token_id == tokenizer.eos_token_id:
        spare = [token for token in ("<|endoftext|>", "<pad>", "<unk>") if token in tokenizer.get_vocab()]
        tokenizer.pad_token = next((token for token in spare if token != tokenizer.eos_token), tokenizer.eos_token)
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    return model, tokenizer


def train(task: Task, settings: SftSettings, work: Path, resume: bool, progress: bool, cuda: bool) -> Trained:
    """Trains in `work/checkpoints`; with `resume` it goes on where a stopped or killed run left off."""
    if not progress:
        datasets_logging.disable_progress_bar()
    model, tokenizer = load_base(task.base, cuda)
    rows = make_rows(task.template, tokenizer, task.train, settings.most_tokens)
    folder = work / "checkpoints"
    steps = step_count(settings, len(rows.prompts), _world())
    writer, stopper = Writer(work / "metrics.jsonl", progress), Stopper()
    trainer = _Trainer(
        task,
        writer,
        model=model,
        args=_arguments(folder, settings, task.metric, len(rows.prompts), cuda, progress),
        train_dataset=Dataset.from_dict({"prompt": rows.prompts, "completion": rows.completions}),
        eval_dataset=_eval_rows(task, tokenizer, settings),
        processing_class=tokenizer,
        peft_config=_lora(settings),
        callbacks=[writer, stopper, EarlyStoppingCallback(settings.patience)],
    )
    remove_torn(folder)
    last = get_last_checkpoint(str(folder)) if resume and folder.is_dir() else None  # type: ignore[no-untyped-call]
    with stopper:
        trainer.train(resume_from_checkpoint=last)
    if stopper.asked:
        done = trainer.state.global_step
        raise Interrupted(f"stopped after step {done} of {steps}; a checkpoint is kept, `--resume` goes on from it")
    return Trained(
        trainer.accelerator.unwrap_model(trainer.model),
        tokenizer,
        float(trainer.state.best_metric or 0.0),
        int(trainer.state.best_global_step or trainer.state.global_step),
        [row for row in trainer.state.log_history if f"eval_{task.metric}" in row],
        _facts(rows, trainer, steps),
    )


class _Trainer(SFTTrainer):
    """TRL's trainer, whose evaluation also writes rewrites of dev and has them judged by retrieval."""

    def __init__(self, task: Task, writer: Writer, **settings: Any) -> None:
        self._task, self._writer = task, writer
        self.judged_seconds = 0.0
        super().__init__(**settings)

    def evaluation_loop(self, *arguments: Any, **settings: Any) -> Any:
        """The library's loop, which gives the loss, and ours."""
        output: Any = super().evaluation_loop(*arguments, **settings)
        prefix = settings.get("metric_key_prefix", "eval")
        started = time.perf_counter()
        found: list[dict[str, float] | None] = [None]
        if self.accelerator.is_main_process:
            found[0] = self._judge()
        if self.accelerator.num_processes > 1:
            torch.distributed.broadcast_object_list(found)
        output.metrics.update({f"{prefix}_{name}": value for name, value in (found[0] or {}).items()})
        self.judged_seconds += time.perf_counter() - started
        return output

    def _judge(self) -> dict[str, float]:
        task = self._task
        model = self.accelerator.unwrap_model(self.model)
        backend = TransformersBackend.around(model, self.processing_class, task.eval_batch)
        rewriter = Rewriter(task.template, backend, Sampling(most_tokens=task.answer_tokens))
        with torch.autocast(model.device.type, torch.bfloat16, enabled=bool(self.args.bf16)):
            rewrites = rewriter.rewrite([example.ask for example in task.dev], self._writer.progress)
        metrics = dict(task.judge(rewrites))
        metrics["parsed"] = sum(each.status in ("rewritten", "none") for each in rewrites) / len(rewrites)
        metrics["lines"] = sum(len(each.lines) for each in rewrites) / len(rewrites)
        self._writer.samples(self.state.global_step, metrics, task.dev[: task.samples], rewrites[: task.samples])
        return metrics

    def create_model_card(self, *arguments: Any, **settings: Any) -> None:
        """Ours is written with the rewriter."""


def remove_torn(folder: Path) -> None:
    """Removes checkpoints that a kill or a full disk left half written: their state is what is written last."""
    for half in folder.glob("checkpoint-*"):
        if not (half / "trainer_state.json").exists():
            shutil.rmtree(half)


def _eval_rows(task: Task, tokenizer: Any, settings: SftSettings) -> Dataset:
    rows = make_rows(task.template, tokenizer, task.dev, settings.most_tokens)
    return Dataset.from_dict({"prompt": rows.prompts, "completion": rows.completions})


def _facts(rows: Rows, trainer: SFTTrainer, steps: int) -> dict[str, Any]:
    summary = next((row for row in reversed(trainer.state.log_history) if "train_runtime" in row), {})
    parameters = list(trainer.accelerator.unwrap_model(trainer.model).parameters())
    return {
        "examples": len(rows.prompts),
        "tokens": rows.tokens,
        "candidates_cut": rows.cut,
        "dropped": rows.dropped,
        "steps": steps,
        "parameters": sum(each.numel() for each in parameters),
        "trained_parameters": sum(each.numel() for each in parameters if each.requires_grad),
        "seconds": round(summary.get("train_runtime", 0.0), 1),
        "evaluation_seconds": round(getattr(trainer, "judged_seconds", 0.0), 1),
    }


def step_count(settings: SftSettings, rows: int, world: int = 1) -> int:
    """Optimizer steps of a whole run, where rows are not packed."""
    per_epoch = max(1, -(-rows // (settings.batch_size * settings.accumulate * world)))
    return max(1, round(per_epoch * settings.epochs))


def _world() -> int:
    return torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1


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


def _packing(settings: SftSettings, cuda: bool) -> bool:
    if settings.packing is not None:
        return settings.packing
    from transformers.utils.import_utils import is_flash_attn_2_available

    return cuda and bool(is_flash_attn_2_available())


def _arguments(folder: Path, settings: SftSettings, metric: str, rows: int, cuda: bool, progress: bool) -> SFTConfig:
    half = cuda and torch.cuda.is_bf16_supported()
    packing = _packing(settings, cuda)
    every = 0.99999 / settings.evaluations  # a share of all steps; a whole 1 would be one step
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
        seed=settings.seed,
        eval_strategy="steps",
        eval_steps=every,
        save_strategy="steps",
        save_steps=every,
        save_total_limit=2,
        load_best_model_at_end=True,
        metric_for_best_model=f"eval_{metric}",
        greater_is_better=True,
        restore_callback_states_from_checkpoint=True,  # early stopping goes on counting
        logging_steps=10,
        logging_first_step=True,
        disable_tqdm=not progress,
        report_to=list(settings.report_to) or "none",
        dataloader_pin_memory=cuda,
    )
