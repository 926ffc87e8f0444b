"""A whole run of PPO: queries in their order, dev judged on the way, checkpoints from which it goes on exactly."""

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

from rewrite.align.alignment_trainer import Goal, Leg, frozen, kept
from rewrite.align.collapse import CollapseWatch, last_collapse
from rewrite.align.estimate import estimate_online
from rewrite.align.groups.run import fitting, with_reward_time
from rewrite.align.ppo.trainer import ActorCritic, Ppo, Tokens
from rewrite.align.query import Query
from rewrite.align.settings import AlignTraining, PpoSettings
from rewrite.backends.model_folder import encode, load_tokenizer
from rewrite.errors import Interrupted, Unfit
from rewrite.folder import disk_errors
from rewrite.sft import checkpoints
from rewrite.sft.callbacks import Rhythm, say
from rewrite.sft.dev_eval_trainer import judged_figures, must_be_number, start_figures
from rewrite.sft.distributed import first, world
from rewrite.sft.run import Run, Trained, load_policy, new_adapter, padded, quiet, shared_arguments
from rewrite.types import Answer

WEIGHTS, REST = "policy.safetensors", "rest.pt"


def train_ppo(goal: Goal, leg: Leg, algo: PpoSettings) -> Trained:
    """Trains the policy in `work/checkpoints`; goes on where a stopped or killed run left off."""
    quiet(leg.progress)
    settings, task = leg.settings, goal.task
    if strangers := [name for name in settings.report_to if name != "tensorboard"]:
        raise Unfit(f"ppo reports to tensorboard and metrics.jsonl alone; leave {strangers[0]} out of report_to")
    if settings.gradient_checkpointing:
        raise Unfit("ppo keeps all activations; leave gradient_checkpointing out and set a smaller algo.minibatch")
    shared = shared_arguments(leg.work / "checkpoints", settings, task.metric, leg.cuda)
    accelerator = Accelerator(cpu=not leg.cuda, mixed_precision="bf16" if shared["bf16"] else "no")
    if first():
        checkpoints.remove_torn(leg.work / "checkpoints")
    accelerator.wait_for_everyone()
    tokenizer = padded(load_tokenizer(task.base))
    set_seed(settings.seed)
    policy = load_policy(task.base, task.adapter, settings.attention)
    if (fresh := new_adapter(settings, task.adapter)) is not None:
        policy = get_peft_model(policy, fresh)
    queries, prompts = fitting(goal, policy, tokenizer, algo.most_tokens)
    encoded = encode(tokenizer, prompts)
    if first():
        lengths, half = [len(tokens) for tokens in encoded], bool(shared["bf16"])
        for line in estimate_online(task.base, settings, algo, lengths, accelerator.device, half, world()).told():
            say(line)
    model = ActorCritic(policy).to(accelerator.device)
    reference = frozen(task).to(accelerator.device)
    ends, pad = [tokenizer.eos_token_id], tokenizer.pad_token_id
    ppo = Ppo(model, reference, algo, settings.learning_rate, settings.weight_decay, ends, pad, accelerator)
    loop = _Loop(goal, leg, ppo, accelerator, tokenizer, queries, encoded)
    return loop.run()


class _Loop:
    """Steps, evaluations, checkpoints."""

    def __init__(
        self, goal: Goal, leg: Leg, ppo: Ppo, accelerator: Accelerator, tokenizer: Any,
        queries: Sequence[Query], prompts: Tokens,
    ) -> None:  # fmt: skip
        self._goal, self._leg, self._ppo, self._accelerator, self._tokenizer = goal, leg, ppo, accelerator, tokenizer
        self._queries, self._prompts = queries, prompts
        self._folder, self._metric = leg.work / "checkpoints", f"eval_{goal.task.metric}"
        self._run = Run(leg.work, leg.settings, goal.task.metric, leg.resume, leg.progress)
        self._watch, self._control = CollapseWatch(goal.limits), TrainerControl()
        each = leg.settings.batch_size * accelerator.num_processes
        self._state = TrainerState(max_steps=max(1, math.ceil(leg.settings.epochs * len(queries) / each)))
        self._listeners = [Rhythm(leg.settings.evaluations), self._run.stopper]
        self._told: list[Any] = [self._watch, *([self._run.recorder] if self._run.recorder else [])]
        self._judged_seconds = self._reward_seconds = 0.0
        self._board: Any = None

    def run(self) -> Trained:
        """To the end, to patience's end, to collapse or to a stop."""
        goal, settings, state = self._goal, self._leg.settings, self._state
        if self._run.last is not None:
            self._load(self._run.last)
            self._state = state = TrainerState.load_from_json(str(self._run.last / checkpoints.STATE))
        self._watch.start = self._begin()
        over = last_collapse(goal.limits, state.log_history, self._watch.start) if state.log_history else ""
        with self._run.stopper:
            while not over and not checkpoints.is_done(asdict(state), self._metric, settings.patience):
                self._step()
                over = self._watch.reason
                if self._run.stopper.stopped:
                    raise Interrupted(
                        f"stopped after step {state.global_step} of {state.max_steps}; a checkpoint is kept, "
                        "`--resume` goes on from it"
                    )
        best = -math.inf if state.best_metric is None else float(state.best_metric)
        if state.best_global_step:
            self._load(self._folder / f"checkpoint-{state.best_global_step}")
        trained = Trained(
            self._ppo.model.policy, self._tokenizer, best, int(state.best_global_step or 0),
            [row for row in state.log_history if self._metric in row], self._facts(), self._run.written,
        )  # fmt: skip
        done = kept(goal, settings, trained, self._watch.start, over)
        return with_reward_time(done, self._reward_seconds, self._run)

    def _step(self) -> None:
        state, control, settings = self._state, self._control, self._leg.settings
        control.should_evaluate = control.should_save = False
        places = self._places(state.global_step)
        figures = self._ppo.step(
            [self._prompts[place] for place in places],
            lambda tokens: self._score(places, tokens),
            settings.seed * 1_000_003 + state.global_step * self._accelerator.num_processes
            + self._accelerator.process_index,
            learning_rate_share(settings, state.global_step, state.max_steps),
        )  # fmt: skip
        for name in ("loss", "grad_norm"):
            must_be_number(figures[name], name.replace("grad_norm", "gradient"), state.global_step)
        state.global_step += 1
        self._log(figures)
        for listener in self._listeners:
            listener.on_step_end(self._accelerator, state, control)
        if control.should_evaluate:
            self._evaluate()
        if control.should_save:
            self._save()

    def _places(self, step: int) -> list[int]:
        """Which queries this process takes in a step: every epoch in an order of its own, drawn by the seed."""
        count, size = len(self._queries), self._leg.settings.batch_size
        start = (step * self._accelerator.num_processes + self._accelerator.process_index) * size
        orders: dict[int, list[int]] = {}
        for epoch in {(start + each) // count for each in range(size)}:
            orders[epoch] = list(range(count))
            random.Random(f"{self._leg.settings.seed}/{epoch}").shuffle(orders[epoch])
        return [orders[(start + each) // count][(start + each) % count] for each in range(size)]

    def _score(self, places: Sequence[int], written: Tokens) -> list[float]:
        started, end = time.perf_counter(), self._tokenizer.eos_token_id
        answers = [
            Answer(self._tokenizer.decode(tokens, skip_special_tokens=True), len(tokens), tokens[-1] == end)
            for tokens in written
        ]
        earned = self._goal.reward([self._queries[place] for place in places], answers)
        self._reward_seconds += time.perf_counter() - started
        return earned

    def _begin(self) -> dict[str, float]:
        known = start_figures(self._leg.work, self._goal.task.metric)  # written by the first process long before
        self._accelerator.wait_for_everyone()
        if known:
            return known
        figures = self._judge()
        if self._run.recorder:
            self._run.recorder.journal.figures(0, figures)
        return figures

    def _judge(self) -> dict[str, float]:
        started = time.perf_counter()
        task, policy = self._goal.task, self._ppo.model.policy
        step, progress = self._state.global_step, self._leg.progress
        figures = judged_figures(task, policy, self._tokenizer, self._run.recorder, step, progress)
        self._judged_seconds += time.perf_counter() - started
        return figures

    def _evaluate(self) -> None:
        figures, state = self._judge(), self._state
        self._log(figures)
        better = state.best_metric is None or figures[self._metric] > state.best_metric
        if better and not self._watch.reason:  # a policy that has collapsed is never the best one
            state.best_metric, state.best_global_step = figures[self._metric], state.global_step

    def _log(self, figures: dict[str, float]) -> None:
        state = self._state
        state.log_history.append({**figures, "step": state.global_step})
        for listener in self._told:
            listener.on_log(None, state, self._control, logs=figures)
        if first() and "tensorboard" in self._leg.settings.report_to:
            if self._board is None:
                from torch.utils.tensorboard import SummaryWriter

                self._board = SummaryWriter(str(self._leg.work / "tensorboard"))
            for name, value in figures.items():
                self._board.add_scalar(name.replace("eval_", "eval/"), value, state.global_step)

    def _save(self) -> None:
        """Weights, critic and optimizer; the state last, since a checkpoint without it is torn."""
        self._accelerator.wait_for_everyone()
        if first():
            folder = self._folder / f"checkpoint-{self._state.global_step}"
            folder.mkdir(parents=True, exist_ok=True)
            model = self._ppo.model
            trained = {name: each.detach().cpu().contiguous() for name, each in _trained(model).items()}
            rest = {"optimizer": self._ppo.optimizer.state_dict(), "kl_weight": self._ppo.kl_weight}
            try:
                with disk_errors():
                    save_file(trained, folder / WEIGHTS)
                    torch.save(rest, folder / REST)
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
        own = _trained(self._ppo.model)
        for name, value in load_file(folder / WEIGHTS).items():
            own[name].data.copy_(value)
        rest = torch.load(folder / REST, map_location="cpu", weights_only=True)
        self._ppo.optimizer.load_state_dict(rest["optimizer"])
        self._ppo.kl_weight = float(rest["kl_weight"])

    def _facts(self) -> dict[str, Any]:
        state, policy = self._state, self._ppo.model.policy
        losses = [row["loss"] for row in state.log_history if "loss" in row]
        return {
            "queries": len(self._queries),
            "too_long": len(self._goal.queries) - len(self._queries),
            "steps": state.max_steps,
            "done": state.global_step,
            "parameters": sum(each.numel() for each in policy.parameters()),
            "trained_parameters": sum(each.numel() for each in policy.parameters() if each.requires_grad),
            "first_loss": losses[0],
            "last_loss": losses[-1],
            "kl_weight": self._ppo.kl_weight,
            "seconds": self._run.recorder.journal.seconds if self._run.recorder else 0.0,
            "evaluation_seconds": round(self._judged_seconds, 1),
        }


def _trained(model: ActorCritic) -> dict[str, torch.nn.Parameter]:
    return {name: each for name, each in model.named_parameters() if each.requires_grad}


def learning_rate_share(settings: AlignTraining, step: int, steps: int) -> float:
    """Which share of the learning rate a step has: warm-up, then the schedule."""
    warm = math.ceil(settings.warmup * steps)
    if step < warm:
        return (step + 1) / warm
    left = 1 - (step - warm) / max(1, steps - warm)
    if settings.schedule == "constant":
        return 1.0
    return left if settings.schedule == "linear" else 0.5 * (1 - math.cos(math.pi * left))
