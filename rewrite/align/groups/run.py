"""GRPO and RLOO by TRL: a group of answers a query, each compared with the others; the reward is ours."""

from __future__ import annotations

from typing import Any

from datasets import Dataset
from transformers import set_seed
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.rloo_config import RLOOConfig

from rewrite.align.alignment_trainer import Goal, Leg, align
from rewrite.align.collapse import CollapseWatch
from rewrite.align.estimate import estimate_online
from rewrite.align.groups.adapter_rollouts import AdapterServer
from rewrite.align.groups.trainers import GrpoAligned, RlooAligned, TrlReward, patient
from rewrite.align.query import Query
from rewrite.align.settings import GrpoSettings, RlooSettings
from rewrite.backends.in_process import TransformersBackend
from rewrite.backends.model_folder import encode, load_tokenizer
from rewrite.errors import Unfit
from rewrite.rewriter import fit
from rewrite.sft import checkpoints
from rewrite.sft.callbacks import say
from rewrite.sft.distributed import first, world
from rewrite.sft.run import Run, Trained, load_policy, new_adapter, older_card, padded, quiet, shared_arguments
from rewrite.speedups.right_padding import turn_rows
from rewrite.speedups.shared_prompts import can_share, share_prompts
from rewrite.types import Prompt


def train_groups(goal: Goal, leg: Leg, algo: GrpoSettings | RlooSettings) -> Trained:
    """Trains on answers that the policy writes on the way, for several steps at once where that is asked for: those
    steps are done whole, since a checkpoint holds no answers."""
    task, settings = goal.task, leg.settings
    quiet(leg.progress)
    _check(algo, leg)
    tokenizer = padded(load_tokenizer(task.base))
    folder = leg.work / "checkpoints"
    arguments = _arguments(leg, algo, task.metric, len(goal.queries))
    if first():
        checkpoints.remove_torn(folder)
    arguments.distributed_state.wait_for_everyone()
    together = algo.steps * algo.iterations
    run = Run(leg.work, settings, task.metric, leg.resume, leg.progress, together)
    watch = CollapseWatch(goal.limits)
    set_seed(settings.seed)
    model = load_policy(task.base, task.adapter, settings.attention)
    queries, prompts = fitting(goal, model, tokenizer, algo.most_tokens)
    left_over = _left_over(len(queries), _at_once(algo, leg) // algo.answers)
    rows = Dataset.from_dict({"prompt": prompts, "place": list(range(len(prompts)))})
    if first():
        lengths = [len(tokens) for tokens in encode(tokenizer, prompts)]
        half = bool(arguments.bf16)
        sharing = can_share(model) and not older_card(arguments.device)
        found = estimate_online(task.base, settings, algo, lengths, arguments.device, half, world(), sharing)
        for line in found.told():
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
    trainer.sharing = share_prompts(trainer)
    if first() and not trainer.sharing:
        say("answers cannot share their prompt here: each is a row of its own, which takes more memory and time")
    turn_rows(trainer)
    trainer.epochs_done = int(run.state.get("epoch", 0))
    if algo.by == "adapter":
        trainer.writer = AdapterServer(algo, leg.work / "rollouts", settings.seed)
    if algo.by == "server" and first():  # the one process that asks it
        patient(trainer.vllm_generation.vllm_client, algo.url)
    facts = {"queries": len(queries), "too_long": len(goal.queries) - len(queries), "left_over": left_over}
    trained = align(goal, leg, run, trainer, watch, facts)
    return with_reward_time(trained, reward.seconds, run)


def with_reward_time(trained: Trained, seconds: float, run: Run) -> Trained:
    """Notes how much of the time the reward took since the run was started or resumed, evaluations left out."""
    if run.recorder and seconds:
        spent = max(1e-9, run.recorder.journal.here - trained.facts["evaluation_seconds"])
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


def _at_once(algo: GrpoSettings | RlooSettings, leg: Leg) -> int:
    """Answers that are written at once, by all devices."""
    return leg.settings.batch_size * leg.settings.accumulate * algo.steps * world()


def _left_over(queries: int, at_once: int) -> int:
    """How many queries every epoch leaves out, other ones each time: TRL takes `at_once` together, or none."""
    if queries < at_once:
        raise Unfit(
            f"answers are written for {at_once} queries at once (training.batch_size x accumulate x algo.steps x "
            f"devices / algo.answers), and there are {queries}; lower one of them, or give more queries"
        )
    if left := queries % at_once:
        say(f"{left} of {queries} queries are left over in every epoch: answers are written for {at_once} at once")
    return left


def _check(algo: GrpoSettings | RlooSettings, leg: Leg) -> None:
    """Refuses what TRL would refuse in its own words, or not at all."""
    batch = _at_once(algo, leg)
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
        "logging_steps": leg.often(rows * algo.answers * algo.iterations),
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
