"""TRL's GRPO and RLOO trainers with our reward, faster generation and exact resuming."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from trl.trainer.grpo_trainer import GRPOTrainer
from trl.trainer.rloo_trainer import RLOOTrainer

from rewrite.align.alignment_trainer import AlignmentTrainer
from rewrite.align.samples import AlignQuery, RewardFunction
from rewrite.backends.in_process import TransformersBackend
from rewrite.errors import BackendDown
from rewrite.settings import Sampling
from rewrite.sft.distributed import world_size
from rewrite.speedups.decoding import MAX_ANSWERS, can_record
from rewrite.speedups.shared_prompts import group_by_prompt
from rewrite.types import Answer

ATTEMPTS, WAIT = 4, 5.0
"""Requests to a rollout server, and the seconds before the second one; each further wait is twice as long."""
T = TypeVar("T")


class TrlReward:
    """Our reward with the signature that TRL calls."""

    def __init__(self, queries: Sequence[AlignQuery], reward: RewardFunction, end: int) -> None:
        self._queries, self._reward, self._end = queries, reward, end
        self.__name__ = "reward"
        self.seconds = 0.0

    def __call__(
        self, completions: Sequence[Any], completion_ids: Sequence[Sequence[int]], index: Sequence[int], **_: Any
    ) -> list[float]:
        """One reward per answer."""
        started = time.perf_counter()
        answers = [
            Answer(completion[0]["content"], len(tokens), bool(tokens) and tokens[-1] == self._end)
            for completion, tokens in zip(completions, completion_ids, strict=True)
        ]
        rewards = self._reward([self._queries[number] for number in index], answers)
        self.seconds += time.perf_counter() - started
        return rewards


class GroupTrainer(AlignmentTrainer):
    """Mixin before TRL's trainers of groups of answers."""

    epochs_done = 0
    """Epochs of the run before it was resumed."""
    sharing = False
    """True where answers to the same prompt are scored together, and are therefore adjacent."""
    _length = 0.0
    _max_answers = MAX_ANSWERS
    """Answers that are generated together, as far as memory allows."""

    def _get_train_sampler(self, dataset: Any = None) -> Any:
        """TRL's sampler, advanced past the orders of the epochs done: it would begin with the first one again."""
        trl: Any = super()
        sampler = trl._get_train_sampler(dataset)
        for _ in range(self.epochs_done):
            torch.randperm(sampler.num_samples, generator=sampler.generator)
        return sampler

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        trl: Any = super()
        mine: Any = self
        before = mine._buffered_inputs
        inputs = trl._prepare_inputs(generation_batch)
        if not self.sharing or mine._buffered_inputs is before:
            return inputs
        mine._buffered_inputs = group_by_prompt(mine._buffered_inputs)
        return mine._buffered_inputs[mine._step % mine.args.steps_per_generation]

    def _generate_single_turn(self, *arguments: Any, **settings: Any) -> Any:
        trl: Any = super()
        args: Any = self.args
        if not args.use_vllm:
            policy = self.accelerator.unwrap_model(self.model)
            if world_size() == 1 and can_record(policy, copied=bool(args.bf16)):
                answers = self._decode(policy, arguments[0])
                return (answers, None) if isinstance(self, GRPOTrainer) else answers
            with self.accelerator.autocast():  # around a whole answer: weights are rounded once, not for every token
                return trl._generate_single_turn(*arguments, **settings)
        if args.vllm_mode != "server":
            return trl._generate_single_turn(*arguments, **settings)
        try:
            return trl._generate_single_turn(*arguments, **settings)
        except BackendDown:
            raise
        except OSError as error:
            raise _server_down(str(args.vllm_server_base_url), error) from error

    def _decode(self, policy: Any, prompts: Sequence[Sequence[int]]) -> list[list[int]]:
        """Generates by recorded steps, seeded by the run's seed and the step."""
        args: Any = self.args
        backend = TransformersBackend.around(policy, self.processing_class, self._max_answers, bool(args.bf16))
        seed = args.seed * 1_000_003 + self.state.global_step
        sampling = Sampling(args.temperature, args.top_p, 1, args.max_completion_length, seed)
        answers = [tokens for (tokens,) in backend.generate_tokens(prompts, sampling)]
        self._max_answers = backend.fitting_batch  # the next step need not try more
        return answers

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Logs the KL distance per answer; TRL has it per token. Lengths are known only in steps that generate."""
        metrics = self._metrics["train"]
        kl, lengths = metrics.get("kl"), metrics.get("completions/mean_length")
        if lengths:
            self._length = sum(lengths) / len(lengths)
        if kl:
            metrics["kl"] = [sum(kl) / len(kl) * self._length]
        super().log(logs, start_time)


class GrpoAlignmentTrainer(GroupTrainer, GRPOTrainer):
    """GRPO."""


class RlooAlignmentTrainer(GroupTrainer, RLOOTrainer):
    """RLOO."""


def retry_server(request: Callable[[], T], url: str, wait: float = WAIT) -> T:
    """Repeats a request while the rollout server may be restarting; then the run ends and can be resumed."""
    for attempt in range(ATTEMPTS):
        try:
            return request()
        except OSError as error:
            if attempt == ATTEMPTS - 1:
                raise _server_down(url, error) from error
            time.sleep(wait * 2**attempt)
    raise AssertionError("the last attempt returns or raises")


def retry_generation(client: Any, url: str) -> None:
    """Makes TRL's client of a rollout server retry. The other processes wait for the main one meanwhile."""
    generate = client.generate
    client.generate = lambda *arguments, **settings: retry_server(lambda: generate(*arguments, **settings), url)


def _server_down(url: str, error: OSError) -> BackendDown:
    return BackendDown(
        f"the rollout server {url} does not answer ({error}); start it again, then resume from the last checkpoint "
        "with `--resume`"
    )
