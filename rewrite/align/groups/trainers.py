"""TRL's trainers of GRPO and RLOO with what ours add: our reward, who writes the answers, and an exact way back."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import torch
from trl.trainer.grpo_trainer import GRPOTrainer
from trl.trainer.rloo_trainer import RLOOTrainer

from rewrite.align.alignment_trainer import Aligned
from rewrite.align.groups.adapter_rollouts import AdapterServer, gone, persistent
from rewrite.align.query import Query, Reward
from rewrite.backends.in_process import TransformersBackend
from rewrite.errors import BackendDown
from rewrite.settings import Sampling
from rewrite.sft.distributed import world
from rewrite.speedups.decoding import AT_ONCE, can_record
from rewrite.speedups.shared_prompts import regrouped
from rewrite.types import Answer

T = TypeVar("T")


class TrlReward:
    """Our reward as TRL calls one."""

    def __init__(self, queries: Sequence[Query], reward: Reward, end: int) -> None:
        self._queries, self._reward, self._end = queries, reward, end
        self.__name__ = "reward"
        self.seconds = 0.0

    def __call__(
        self, completions: Sequence[Any], completion_ids: Sequence[Sequence[int]], place: Sequence[int], **_: Any
    ) -> list[float]:
        """One number an answer."""
        started = time.perf_counter()
        answers = [
            Answer(completion[0]["content"], len(tokens), bool(tokens) and tokens[-1] == self._end)
            for completion, tokens in zip(completions, completion_ids, strict=True)
        ]
        rewards = self._reward([self._queries[number] for number in place], answers)
        self.seconds += time.perf_counter() - started
        return rewards


class Grouped(Aligned):
    """What both add to TRL's trainers."""

    writer: AdapterServer | None = None
    """Who writes the answers, if not TRL."""
    epochs_done = 0
    """By the run that goes on here."""
    sharing = False
    """True where answers to the same prompt are scored together, and therefore stand beside one another."""
    _length = 0.0
    _at_once = AT_ONCE
    """Answers that are written at a time, as far as memory was found for them."""

    def _get_train_sampler(self, dataset: Any = None) -> Any:
        """TRL's, whose every epoch has an order of its own, drawn after those that are done: of itself it would begin
        with the first one again."""
        above: Any = super()
        sampler = above._get_train_sampler(dataset)
        for _ in range(self.epochs_done):
            torch.randperm(sampler.num_samples, generator=sampler.generator)
        return sampler

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        above: Any = super()
        mine: Any = self
        before = mine._buffered_inputs
        found = above._prepare_inputs(generation_batch)
        if not self.sharing or mine._buffered_inputs is before:
            return found
        mine._buffered_inputs = regrouped(mine._buffered_inputs)
        return mine._buffered_inputs[mine._step % mine.args.steps_per_generation]

    def _generate_single_turn(self, *arguments: Any, **settings: Any) -> Any:
        above: Any = super()
        how: Any = self.args
        if self.writer is not None:
            written = persistent(lambda: self._written(arguments[0]), self.writer.url)
            return (written, None) if isinstance(self, GRPOTrainer) else written
        if not how.use_vllm:
            policy = self.accelerator.unwrap_model(self.model)
            if world() == 1 and can_record(policy, copied=bool(how.bf16)):
                written = self._decoded(policy, arguments[0])
                return (written, None) if isinstance(self, GRPOTrainer) else written
            with self.accelerator.autocast():  # around a whole answer: weights are rounded once, not for every token
                return above._generate_single_turn(*arguments, **settings)
        if how.vllm_mode != "server":
            return above._generate_single_turn(*arguments, **settings)
        try:
            return above._generate_single_turn(*arguments, **settings)
        except BackendDown:
            raise
        except OSError as error:
            raise gone(str(how.vllm_server_base_url), error) from error

    def _decoded(self, policy: Any, prompts: Sequence[Sequence[int]]) -> list[list[int]]:
        """By steps that are recorded, drawn by the seed and the step."""
        how: Any = self.args
        backend = TransformersBackend.around(policy, self.processing_class, self._at_once, bool(how.bf16))
        seed = how.seed * 1_000_003 + self.state.global_step
        sampling = Sampling(how.temperature, how.top_p, 1, how.max_completion_length, seed)
        written = [tokens for (tokens,) in backend.write(prompts, sampling)]
        self._at_once = backend.fitted  # the next step need not find out again
        return written

    def _written(self, prompts: Sequence[Sequence[int]]) -> list[list[int]]:
        assert self.writer is not None
        mine: Any = self.accelerator
        step, rank = self.state.global_step, mine.process_index
        policy = mine.unwrap_model(self.model)
        self._together(lambda writer: writer.take(policy, step, mine.is_main_process))
        return self._together(lambda writer: writer.write(prompts, step, rank * len(prompts)))

    def _together(self, work: Callable[[AdapterServer], T]) -> T:
        """Done by all processes: what fails for one of them fails for all, so that all try it again."""
        assert self.writer is not None
        done: T | None = None
        trouble: OSError | None = None
        try:
            done = work(self.writer)
        except OSError as error:
            trouble = error
        failed = torch.tensor(float(trouble is not None), device=self.args.device)
        if world() > 1:
            torch.distributed.all_reduce(failed, torch.distributed.ReduceOp.MAX)
        if failed.item():
            self.writer.forget()
            raise trouble or BackendDown("it failed another process")
        return cast(T, done)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """With the distance from the reference in nats an answer; TRL tells it a token. Lengths are told where answers
        were written, which is not in every step."""
        metrics = self._metrics["train"]
        kl, lengths = metrics.get("kl"), metrics.get("completions/mean_length")
        if lengths:
            self._length = sum(lengths) / len(lengths)
        if kl:
            metrics["kl"] = [sum(kl) / len(kl) * self._length]
        super().log(logs, start_time)


class GrpoAligned(Grouped, GRPOTrainer):
    """Trains as TRL does."""


class RlooAligned(Grouped, RLOOTrainer):
    """Trains as TRL does."""


def patient(client: Any, url: str) -> None:
    """Has TRL's client of a rollout server ask again. The others wait for the first process meanwhile."""
    ask = client.generate
    client.generate = lambda *arguments, **settings: persistent(lambda: ask(*arguments, **settings), url)
