"""A run of PPO: queries in their order, evaluations on dev, and checkpoints that it resumes from exactly."""

from __future__ import annotations

import math
import random
import shutil
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from peft import get_peft_model
from safetensors.torch import load_file, save_file
from transformers import TrainerControl, TrainerState, set_seed

from rewrite.align.alignment_trainer import AlignTask, keep_best, load_reference
from rewrite.align.collapse import CollapseWatch
from rewrite.align.estimate import estimate_online
from rewrite.align.groups.run import add_reward_time, select_fitting
from rewrite.align.ppo.trainer import ActorCritic, Ppo, Tokens
from rewrite.align.samples import AlignQuery
from rewrite.align.settings import PpoSettings
from rewrite.backends.model_folder import encode
from rewrite.errors import RewriteError
from rewrite.folder import disk_errors
from rewrite.settings import SftSettings
from rewrite.sft import checkpoints
from rewrite.sft.callbacks import EvaluationSchedule
from rewrite.sft.dev_eval_trainer import check_finite, evaluate_on_main
from rewrite.sft.distributed import is_main_process, world_size
from rewrite.sft.metrics_log import read_start_metrics
from rewrite.sft.models import load_policy, load_training_tokenizer, lora_config, silence_progress
from rewrite.sft.run import RunOptions, TrainingResult, TrainingRun, training_arguments
from rewrite.types import Answer

WEIGHTS, OPTIMIZER = "policy.safetensors", "optimizer.pt"


def train_ppo(align_task: AlignTask, options: RunOptions, algo: PpoSettings) -> TrainingResult:
    """Trains the policy in `folder/checkpoints`; continues a stopped or killed run."""
    silence_progress(options.progress)
    settings, task = options.settings, align_task.training
    if others := [name for name in settings.report_to if name != "tensorboard"]:
        raise RewriteError(f"ppo reports to tensorboard and metrics.jsonl alone; leave {others[0]} out of report_to")
    if settings.gradient_checkpointing:
        raise RewriteError("ppo keeps all activations; leave gradient_checkpointing out, lower algo.minibatch_size")
    half = bool(training_arguments(options, task.metric)["bf16"])
    accelerator = Accelerator(cpu=not options.cuda, mixed_precision="bf16" if half else "no")
    tokenizer = load_training_tokenizer(task.base)
    set_seed(settings.seed)
    policy = load_policy(task.base, task.adapter, settings.attention)
    if (adapter := lora_config(settings, task.adapter)) is not None:
        policy = get_peft_model(policy, adapter)
    queries, prompts = select_fitting(align_task, policy, tokenizer, algo.max_tokens)
    encoded = encode(tokenizer, prompts)
    if is_main_process():
        lengths = [len(tokens) for tokens in encoded]
        estimate_online(task.base, settings, algo, lengths, accelerator.device, half, world_size()).log()
    model = ActorCritic(policy).to(accelerator.device)
    reference = load_reference(task).to(accelerator.device)
    ends, pad = [tokenizer.eos_token_id], tokenizer.pad_token_id
    ppo = Ppo(model, reference, algo, settings.learning_rate, settings.weight_decay, ends, pad, accelerator)
    return _PpoLoop(align_task, options, ppo, accelerator, tokenizer, queries, encoded).run()


class _PpoLoop:
    """Steps, evaluations, checkpoints."""

    def __init__(
        self,
        task: AlignTask,
        options: RunOptions,
        ppo: Ppo,
        accelerator: Accelerator,
        tokenizer: Any,
        queries: Sequence[AlignQuery],
        prompts: Tokens,
    ) -> None:
        self._task, self._options, self._ppo, self._accelerator = task, options, ppo, accelerator
        self._tokenizer, self._queries, self._prompts = tokenizer, queries, prompts
        settings, metric = options.settings, task.training.metric
        self._folder, self._metric = options.checkpoints, f"eval_{metric}"
        self._run = TrainingRun(options, metric, accelerator.wait_for_everyone)
        self._watch, self._control = CollapseWatch(task.limits), TrainerControl()
        batch = settings.batch_size * accelerator.num_processes
        self._state = TrainerState(max_steps=max(1, math.ceil(settings.epochs * len(queries) / batch)))
        self._step_callbacks = [EvaluationSchedule(settings.evaluations), self._run.stopper]
        self._log_callbacks: list[Any] = [self._watch, *([self._run.recorder] if self._run.recorder else [])]
        self._evaluation_seconds = self._reward_seconds = 0.0
        self._board: Any = None

    def run(self) -> TrainingResult:
        """Trains until the end, early stopping, a collapse or a graceful stop."""
        settings, state = self._options.settings, self._state
        if self._run.last is not None:
            self._load(self._run.last)
            self._state = state = TrainerState.load_from_json(str(self._run.last / checkpoints.STATE))
        self._watch.start = self._evaluate_start()
        collapse = self._watch.stop_reason(state.log_history)
        with self._run.stopper:
            while not collapse and not checkpoints.is_done(asdict(state), self._metric, settings.patience):
                self._step()
                collapse = self._watch.reason
                self._run.raise_if_stopped(state)
        if state.best_global_step:
            self._load(self._folder / f"checkpoint-{state.best_global_step}")
        batch = settings.batch_size * self._accelerator.num_processes
        facts = {
            "answers": state.global_step * batch,
            "queries": len(self._queries),
            "too_long": len(self._task.queries) - len(self._queries),
            "kl_weight": self._ppo.kl_weight,
        }
        policy, seconds = self._ppo.model.policy, self._evaluation_seconds
        result = self._run.make_result(policy, self._tokenizer, state, seconds, facts)
        result = keep_best(self._task, settings, result, self._watch.start, collapse)
        return add_reward_time(result, self._reward_seconds, self._run)

    def _step(self) -> None:
        state, control, settings = self._state, self._control, self._options.settings
        control.should_evaluate = control.should_save = False
        indices = self._indices(state.global_step)
        processes, rank = self._accelerator.num_processes, self._accelerator.process_index
        metrics = self._ppo.step(
            [self._prompts[index] for index in indices],
            lambda tokens: self._score(indices, tokens),
            settings.seed * 1_000_003 + state.global_step * processes + rank,
            learning_rate_share(settings, state.global_step, state.max_steps),
        )
        check_finite(metrics["loss"], "loss", state.global_step)
        check_finite(metrics["grad_norm"], "gradient", state.global_step)
        state.global_step += 1
        self._log(metrics)
        for callback in self._step_callbacks:
            callback.on_step_end(self._accelerator, state, control)
        if control.should_evaluate:
            self._evaluate()
        if control.should_save:
            self._save()

    def _indices(self, step: int) -> list[int]:
        """Indices of this process's queries in a step: every epoch has its own order, drawn by the seed."""
        count, size = len(self._queries), self._options.settings.batch_size
        start = (step * self._accelerator.num_processes + self._accelerator.process_index) * size
        orders: dict[int, list[int]] = {}
        for epoch in {number // count for number in range(start, start + size)}:
            orders[epoch] = list(range(count))
            random.Random(f"{self._options.settings.seed}/{epoch}").shuffle(orders[epoch])
        return [orders[number // count][number % count] for number in range(start, start + size)]

    def _score(self, indices: Sequence[int], answers: Tokens) -> list[float]:
        started, end = time.perf_counter(), self._tokenizer.eos_token_id
        decoded = [
            Answer(self._tokenizer.decode(tokens, skip_special_tokens=True), len(tokens), tokens[-1] == end)
            for tokens in answers
        ]
        rewards = self._task.reward([self._queries[index] for index in indices], decoded)
        self._reward_seconds += time.perf_counter() - started
        return rewards

    def _evaluate_start(self) -> dict[str, float]:
        known = read_start_metrics(self._options.folder, self._task.training.metric)  # written by an earlier leg
        self._accelerator.wait_for_everyone()
        if known:
            return known
        metrics = self._evaluate_policy()
        if self._run.recorder:
            self._run.recorder.metrics_log.write(0, metrics)
        return metrics

    def _evaluate_policy(self) -> dict[str, float]:
        started = time.perf_counter()
        policy, step, progress = self._ppo.model.policy, self._state.global_step, self._options.progress
        metrics = evaluate_on_main(self._task.training, policy, self._tokenizer, self._run.recorder, step, progress)
        self._evaluation_seconds += time.perf_counter() - started
        return metrics

    def _evaluate(self) -> None:
        metrics, state = self._evaluate_policy(), self._state
        self._log(metrics)
        better = state.best_metric is None or metrics[self._metric] > state.best_metric
        if better and not self._watch.reason:  # a collapsed policy is never the best
            state.best_metric, state.best_global_step = metrics[self._metric], state.global_step

    def _log(self, metrics: dict[str, float]) -> None:
        state = self._state
        state.log_history.append({**metrics, "step": state.global_step})
        for callback in self._log_callbacks:
            callback.on_log(None, state, self._control, logs=metrics)
        if is_main_process() and "tensorboard" in self._options.settings.report_to:
            if self._board is None:
                from torch.utils.tensorboard import SummaryWriter

                self._board = SummaryWriter(str(self._options.folder / "tensorboard"))
            for name, value in metrics.items():
                self._board.add_scalar(name.replace("eval_", "eval/"), value, state.global_step)

    def _save(self) -> None:
        """Saves weights, critic and optimizer; the state last, since a checkpoint without it is torn."""
        self._accelerator.wait_for_everyone()
        if is_main_process():
            folder = self._folder / f"checkpoint-{self._state.global_step}"
            folder.mkdir(parents=True, exist_ok=True)
            weights = {name: weight.detach().cpu().contiguous() for name, weight in self._trained_weights().items()}
            rest = {"optimizer": self._ppo.optimizer.state_dict(), "kl_weight": self._ppo.kl_weight}
            try:
                with disk_errors():
                    save_file(weights, folder / WEIGHTS)
                    torch.save(rest, folder / OPTIMIZER)
                    self._state.save_to_json(str(folder / checkpoints.STATE))
            except OSError:
                checkpoints.remove_torn(self._folder)
                raise
            keep = {self._state.global_step, self._state.best_global_step}
            for path in self._folder.glob("checkpoint-*"):
                if int(path.name.rpartition("-")[2]) not in keep:
                    shutil.rmtree(path)
        self._accelerator.wait_for_everyone()

    def _load(self, folder: Path) -> None:
        weights = self._trained_weights()
        for name, value in load_file(folder / WEIGHTS).items():
            weights[name].data.copy_(value)
        rest = torch.load(folder / OPTIMIZER, map_location="cpu", weights_only=True)
        self._ppo.optimizer.load_state_dict(rest["optimizer"])
        self._ppo.kl_weight = float(rest["kl_weight"])

    def _trained_weights(self) -> dict[str, torch.nn.Parameter]:
        return {name: weight for name, weight in self._ppo.model.named_parameters() if weight.requires_grad}


def learning_rate_share(settings: SftSettings, step: int, steps: int) -> float:
    """Share of the learning rate at a step: warm-up, then the schedule."""
    warm = math.ceil(settings.warmup * steps)
    if step < warm:
        return (step + 1) / warm
    left = 1 - (step - warm) / max(1, steps - warm)
    if settings.schedule == "constant":
        return 1.0
    return left if settings.schedule == "linear" else 0.5 * (1 - math.cos(math.pi * left))
