"""What every training by the library shares: where it goes on from, who listens, how it ends."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from datasets.utils import logging as datasets_logging
from peft import LoraConfig, PeftModel
from safetensors import SafetensorError
from transformers import EarlyStoppingCallback, PrinterCallback, ProgressCallback
from transformers.integrations.integration_utils import TensorBoardCallback
from transformers.trainer_callback import TrainerCallback, TrainerState
from transformers.utils import logging as transformers_logging
from transformers.utils.import_utils import is_flash_attn_2_available

from rewrite.backends.model_folder import adapter_config, load_model, misfit, no_memory
from rewrite.errors import Interrupted, Unfit
from rewrite.settings import SftSettings
from rewrite.sft import checkpoints
from rewrite.sft.callbacks import Bar, Recorder, Rhythm, Stopper
from rewrite.sft.dev_eval_trainer import Judged
from rewrite.sft.distributed import first, world
from rewrite.sft.metrics_log import Journal
from rewrite.types import Rewrite

NEVER = 1_000_000_000
AMPERE = (8, 0)


@dataclass(frozen=True, slots=True)
class Trained:
    """A finished run, its best model loaded."""

    model: Any
    tokenizer: Any
    best: float
    step: int
    history: list[dict[str, float]]
    facts: dict[str, Any]
    written: Mapping[int, Sequence[Rewrite]] = field(default_factory=dict)
    """What the model of a step wrote for dev, where it was asked since the run was started or resumed."""


class Run:
    """One leg of a run in a folder: the checkpoint it goes on from, the journal, and those who listen."""

    def __init__(
        self, work: Path, settings: SftSettings, metric: str, resume: bool, progress: bool, every: int = 1
    ) -> None:
        """Call it in every process when torn checkpoints are gone. `every`: the steps between which no checkpoint may
        fall, since what they learn from is made before the first of them."""
        self._every = every
        self._work, self._settings, self.metric, self._progress = work, settings, metric, progress
        self.last = checkpoints.last(work / "checkpoints") if resume else None
        self.state = checkpoints.read_state(self.last) if self.last else {}
        self.recorder = Recorder(Journal(work, int(self.state.get("global_step", 0)))) if first() else None
        self.stopper = Stopper(every)

    def callbacks(self) -> list[TrainerCallback]:
        """Evaluations in their rhythm, a hand on the brake, and patience."""
        rhythm = Rhythm(self._settings.evaluations, self._every)
        return [rhythm, self.stopper, EarlyStoppingCallback(self._settings.patience)]

    def go(self, trainer: Judged, over: bool = False) -> None:
        """Trains to the end, or loads the best model where nothing is left to do (or all is `over`)."""
        self._listen(trainer)
        patience = self._settings.patience
        if self.last and (over or checkpoints.is_done(self.state, f"eval_{self.metric}", patience)):
            trainer.state = TrainerState.load_from_json(str(self.last / checkpoints.STATE))
            if trainer.state.best_global_step:
                trainer._load_best_model()
        else:
            with self.stopper:
                trainer.train(resume_from_checkpoint=str(self.last) if self.last else None)
        if self.stopper.stopped:
            done, steps = trainer.state.global_step, trainer.state.max_steps
            raise Interrupted(f"stopped after step {done} of {steps}; a checkpoint is kept, `--resume` goes on from it")

    def _listen(self, trainer: Judged) -> None:
        """Ours in place of the library's, which print among the command's results."""
        trainer.remove_callback(PrinterCallback)
        trainer.remove_callback(ProgressCallback)
        if self.recorder is not None:
            trainer.add_callback(self.recorder)
            if "tensorboard" in self._settings.report_to:
                from torch.utils.tensorboard import SummaryWriter

                trainer.add_callback(TensorBoardCallback(SummaryWriter(str(self._work / "tensorboard"))))  # type: ignore[no-untyped-call]
        if self._progress and first():
            trainer.add_callback(Bar)

    def trained(self, trainer: Judged, tokenizer: Any, facts: dict[str, Any]) -> Trained:
        """What came out, with the figures that every training has."""
        state = trainer.state
        history = [row for row in state.log_history if f"eval_{self.metric}" in row]
        if not history:
            raise RuntimeError("the run ended without an evaluation")
        best = -math.inf if state.best_metric is None else float(state.best_metric)  # none but those beyond hope
        model: Any = trainer.accelerator.unwrap_model(trainer.model)
        losses = [row["loss"] for row in state.log_history if "loss" in row]
        facts = facts | {
            "steps": state.max_steps,
            "done": state.global_step,
            "parameters": sum(each.numel() for each in model.parameters()),
            "trained_parameters": sum(each.numel() for each in model.parameters() if each.requires_grad),
            "first_loss": losses[0],
            "last_loss": losses[-1],
            "seconds": self.recorder.journal.seconds if self.recorder else 0.0,
            "evaluation_seconds": round(trainer.judged_seconds, 1),
        }
        return Trained(model, tokenizer, best, int(state.best_global_step or 0), history, facts, self.written)

    @property
    def written(self) -> dict[int, list[Rewrite]]:
        """What was written for dev, by step; nothing in all processes but the first."""
        return self.recorder.written if self.recorder else {}


def shared_arguments(folder: Path, settings: SftSettings, metric: str, cuda: bool) -> dict[str, Any]:
    """The library's arguments that are the same whatever is trained."""
    if cuda and world() == 1 and torch.cuda.device_count() > 1:
        count = torch.cuda.device_count()
        raise Unfit(
            f"there are {count} GPUs; start `accelerate launch --num_processes {count} $(which rewrite-train) …`, "
            "or set CUDA_VISIBLE_DEVICES=0 to use one"
        )
    half = cuda and torch.cuda.is_bf16_supported(including_emulation=False)
    return {
        "output_dir": str(folder),
        "num_train_epochs": settings.epochs,
        "per_device_train_batch_size": settings.batch_size,
        "per_device_eval_batch_size": settings.batch_size,
        "gradient_accumulation_steps": settings.accumulate,
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
        "eval_steps": NEVER,  # the rhythm is ours
        "save_strategy": "steps",
        "save_steps": NEVER,
        "save_total_limit": 2,
        "load_best_model_at_end": True,
        "metric_for_best_model": f"eval_{metric}",
        "greater_is_better": True,
        "restore_callback_states_from_checkpoint": True,  # early stopping goes on counting
        "logging_steps": 10,
        "logging_first_step": True,
        "disable_tqdm": True,
        "report_to": [name for name in settings.report_to if name != "tensorboard"] or "none",
        "dataloader_pin_memory": cuda,
    }


def padded(tokenizer: Any) -> Any:
    """The tokenizer with padding that is not its end token: else a model would not learn where an answer ends."""
    if tokenizer.pad_token_id is None or tokenizer.pad_token_id == tokenizer.eos_token_id:
        spare = [token for token in ("<|endoftext|>", "<pad>", "<unk>") if token in tokenizer.get_vocab()]
        tokenizer.pad_token = next((token for token in spare if token != tokenizer.eos_token), tokenizer.eos_token)
    return tokenizer


def load_base(base: Path, attention: str = "auto", packed: bool = False) -> Any:
    """The model in float32: the optimizer needs the precision, mixed precision gives the speed."""
    if attention == "auto" and packed and is_flash_attn_2_available():
        attention = "flash_attention_2"
    how = {} if attention == "auto" else {"attn_implementation": attention}
    return load_model(base, torch.float32, **how)


def load_policy(base: Path, adapter: Path | None, attention: str = "auto", packed: bool = False) -> Any:
    """The model that is trained: as it is, or with an adapter on it that goes on learning.

    cuDNN's attention is left out: on Hopper, from PyTorch 2.11 on, its gradient under a mask is no number for some
    lengths (pytorch/pytorch issue 196678, met by Qwen2.5 in particular).
    """
    torch.backends.cuda.enable_cudnn_sdp(False)
    model = load_base(base, attention, packed)
    if adapter is None:
        return model
    adapter_config(adapter, base)
    try:
        return PeftModel.from_pretrained(model, str(adapter), is_trainable=True)
    except (OSError, ValueError, TypeError, KeyError, MemoryError, RuntimeError, SafetensorError) as error:
        raise no_memory(error, adapter) or misfit(adapter, base) from error


def without_padding_mask(trainer: Any) -> None:
    """From now on the trainer's model trains without the mask of its padding.

    Rows are padded on the right: no token looks there, and no loss is taken of it, so that the gradient is the same.
    Without a mask PyTorch takes the attention that needs neither the memory nor the time of a whole matrix a head.
    """
    if needs_mask(trainer):
        return

    def unmasked(module: Any, args: tuple[Any, ...], named: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return args, {**named, "attention_mask": None} if module.training else named

    trainer.model.register_forward_pre_hook(unmasked, with_kwargs=True)


def needs_mask(trainer: Any) -> bool:
    """True where training is to know its padding: before Ampere PyTorch would take attention that computes a whole
    matrix a head, and padding would count where a mixture balances its experts."""
    return older_card(trainer.args.device) or bool(getattr(trainer, "aux_loss_enabled", False))


def older_card(device: torch.device) -> bool:
    """True for an NVIDIA card before Ampere."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) < AMPERE


def new_adapter(settings: SftSettings, adapter: Path | None = None) -> LoraConfig | None:
    """The adapter that is put on the model; None where there is one already, or the whole model is trained."""
    if settings.method == "full" or adapter is not None:
        return None
    lora = settings.lora
    return LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules="all-linear",
        task_type="CAUSAL_LM",
    )


def quiet(progress: bool) -> None:
    """No bars where nobody looks."""
    if not progress:
        datasets_logging.disable_progress_bar()
        transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
