"""GRPO and RLOO by TRL: a group of answers a query, each compared with the others; the reward is ours."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import torch
from datasets import Dataset
from transformers import set_seed
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer
from trl.trainer.rloo_config import RLOOConfig
from trl.trainer.rloo_trainer import RLOOTrainer

from rewrite.align.aligned import Aligned, Goal, Leg, align
from rewrite.align.collapse import CollapseWatch
from rewrite.align.estimate import estimate_online
from rewrite.align.query import Query, Reward
from rewrite.align.settings import GrpoSettings, RlooSettings
from rewrite.align.shipped import AdapterServer, gone, persistent
from rewrite.backends.in_process import TransformersBackend
from rewrite.backends.model_folder import encode, load_tokenizer
from rewrite.errors import BackendDown, Unfit
from rewrite.rewriter import fit
from rewrite.sft import checkpoints
from rewrite.sft.ranks import first, world
from rewrite.sft.running import Run, Trained, load_policy, new_adapter, padded, quiet, shared_arguments
from rewrite.sft.watch import say
from rewrite.types import Answer, Prompt

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

    def _generate_single_turn(self, *arguments: Any, **settings: Any) -> Any:
        above: Any = super()
        how: Any = self.args
        if self.writer is not None:
            written = persistent(lambda: self._written(arguments[0]), self.writer.url)
            return (written, None) if isinstance(self, GRPOTrainer) else written
        if not how.use_vllm:
            with half_precision(how.device.type, how.bf16):
                return above._generate_single_turn(*arguments, **settings)
        if how.vllm_mode != "server":
            return above._generate_single_turn(*arguments, **settings)
        try:
            return above._generate_single_turn(*arguments, **settings)
        except BackendDown:
            raise
        except OSError as error:
            raise gone(str(how.vllm_server_base_url), error) from error

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
        """With the distance from the reference in nats an answer; TRL tells it a token."""
        metrics = self._metrics["train"]
        kl, lengths = metrics.get("kl"), metrics.get("completions/mean_length")
        if kl and lengths:
            metrics["kl"] = [sum(kl) / len(kl) * sum(lengths) / len(lengths)]
        super().log(logs, start_time)


class GrpoAligned(Grouped, GRPOTrainer):
    """Trains as TRL does."""


class RlooAligned(Grouped, RLOOTrainer):
    """Trains as TRL does."""


def train_groups(goal: Goal, leg: Leg, algo: GrpoSettings | RlooSettings) -> Trained:
    """Trains on answers that the policy writes on the way."""
    task, settings = goal.task, leg.settings
    quiet(leg.progress)
    _check(algo, leg)
    tokenizer = padded(load_tokenizer(task.base))
    folder = leg.work / "checkpoints"
    arguments = _arguments(leg, algo, task.metric, len(goal.queries))
    if first():
        checkpoints.remove_torn(folder)
    arguments.distributed_state.wait_for_everyone()
    run, watch = Run(leg.work, settings, task.metric, leg.resume, leg.progress), CollapseWatch(goal.limits)
    set_seed(settings.seed)
    model = load_policy(task.base, task.adapter, settings.attention)
    queries, prompts = fitting(goal, model, tokenizer, algo.most_tokens)
    rows = Dataset.from_dict({"prompt": prompts, "place": list(range(len(prompts)))})
    if first():
        lengths = [len(tokens) for tokens in encode(tokenizer, prompts)]
        half = bool(arguments.bf16)
        for line in estimate_online(task.base, settings, algo, lengths, arguments.device, half, world()).told():
            say(line)
    reward = TrlReward(queries, goal.reward, tokenizer.eos_token_id)
    kind: Any = GrpoAligned if isinstance(algo, GrpoSettings) else RlooAligned
    trainer = kind(
        task,
        run.recorder,
        leg.progress,
        model=model,
        reward_funcs=reward,
        args=arguments,
        train_dataset=rows,
        eval_dataset=rows.select(range(1)),
        processing_class=tokenizer,
        peft_config=new_adapter(settings, task.adapter),
        callbacks=[*run.callbacks(), watch],
    )
    if algo.by == "adapter":
        trainer.writer = AdapterServer(algo, leg.work / "rollouts", settings.seed)
    if algo.by == "server" and first():  # the one process that asks it
        patient(trainer.vllm_generation.vllm_client, algo.url)
    facts = {"queries": len(queries), "too_long": len(goal.queries) - len(queries)}
    trained = align(goal, leg, run, trainer, watch, facts)
    return with_reward_time(trained, reward.seconds)


def half_precision(device: str, wanted: bool) -> torch.autocast:
    """For a whole answer at once: weights are rounded once, not anew for each of its tokens."""
    return torch.autocast(device, torch.bfloat16, enabled=wanted)


def patient(client: Any, url: str) -> None:
    """Has TRL's client of a rollout server ask again. The others wait for the first process meanwhile."""
    ask = client.generate
    client.generate = lambda *arguments, **settings: persistent(lambda: ask(*arguments, **settings), url)


def with_reward_time(trained: Trained, seconds: float) -> Trained:
    """Notes how much of the time the reward took, evaluations left out."""
    spent = max(1e-9, trained.facts["seconds"] - trained.facts["evaluation_seconds"])
    trained.facts.update(reward_seconds=round(seconds, 3), reward_share=round(min(1.0, seconds / spent), 4))
    return trained


def fitting(goal: Goal, model: Any, tokenizer: Any, most_tokens: int) -> tuple[list[Query], list[Prompt]]:
    """The queries whose prompts leave room for an answer, with those prompts."""
    backend = TransformersBackend.around(model, tokenizer, 1)
    fitted = fit(goal.task.template, backend, [query.example.ask for query in goal.queries], most_tokens)
    both = [(query, prompt) for query, (prompt, _) in zip(goal.queries, fitted, strict=True) if prompt is not None]
    if not both:
        raise Unfit("no query leaves room for an answer; set a smaller algo.most_tokens or show fewer candidates")
    if len(both) < len(goal.queries):
        say(f"{len(goal.queries) - len(both)} queries are too long and left out")
    return [query for query, _ in both], [prompt for _, prompt in both]


def _check(algo: GrpoSettings | RlooSettings, leg: Leg) -> None:
    """Refuses what TRL would refuse in its own words, or not at all."""
    batch = leg.settings.batch_size * leg.settings.accumulate * algo.steps * world()
    if batch % algo.answers:
        raise Unfit(
            f"training.batch_size x accumulate x algo.steps x devices is {batch}, no multiple of algo.answers "
            f"({algo.answers})"
        )
    if algo.by in ("colocate", "server") and not leg.cuda:
        raise Unfit(
            f"rollouts by vLLM ({algo.by}) need a CUDA device to ship weights to; "
            "set algo.by to transformers or adapter"
        )
    if algo.by == "adapter" and leg.settings.method != "lora":
        raise Unfit("rollouts by `adapter` ship a LoRA; set training.method to lora, or algo.by to something else")


def _arguments(leg: Leg, algo: GrpoSettings | RlooSettings, metric: str, rows: int) -> Any:
    shared = shared_arguments(leg.work / "checkpoints", leg.settings, metric, leg.cuda) | {
        "num_generations": algo.answers,
        "num_generations_eval": 1,
        "max_completion_length": algo.most_tokens,
        "temperature": algo.temperature,
        "top_p": algo.top_p,
        "top_k": 0,
        "beta": algo.beta,
        "num_iterations": algo.iterations,
        "steps_per_generation": leg.settings.accumulate * algo.steps,
        "epsilon": algo.clip,
        "logging_steps": leg.often(rows * algo.answers),
        "use_vllm": algo.by in ("colocate", "server"),
    }
    if algo.by in ("colocate", "server"):
        shared |= {"vllm_mode": algo.by, "vllm_gpu_memory_utilization": algo.memory}
        shared |= {"vllm_server_base_url": algo.url} if algo.by == "server" else {}
    else:  # a loss that is no number will tell; here it would end the process, on a GPU for good
        shared["generation_kwargs"] = {"remove_invalid_values": True}
    if isinstance(algo, GrpoSettings):
        return GRPOConfig(**shared, loss_type=algo.loss, scale_rewards=algo.scale)
    return RLOOConfig(**shared)
