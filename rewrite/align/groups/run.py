"""GRPO and RLOO with TRL: several answers per query, each compared with the others, scored by our reward."""

from __future__ import annotations

import math
from typing import Any

from datasets import Dataset
from transformers import set_seed
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.rloo_config import RLOOConfig

from rewrite.align.alignment_trainer import AlignTask, run_alignment
from rewrite.align.collapse import CollapseWatch
from rewrite.align.estimate import estimate_online
from rewrite.align.groups.trainers import GrpoAlignmentTrainer, RlooAlignmentTrainer, TrlReward, retry_generation
from rewrite.align.samples import AlignQuery
from rewrite.align.settings import GrpoSettings, RlooSettings
from rewrite.backends.in_process import TransformersBackend
from rewrite.backends.model_folder import encode
from rewrite.errors import RewriteError
from rewrite.rewriter import fit_prompts
from rewrite.sft.callbacks import log_line
from rewrite.sft.distributed import is_main_process, world_size
from rewrite.sft.models import load_policy, load_training_tokenizer, lora_config, silence_progress
from rewrite.sft.run import RunOptions, TrainingResult, TrainingRun, training_arguments
from rewrite.speedups.right_padding import is_before_ampere, pad_right
from rewrite.speedups.shared_prompts import can_share, share_prompts
from rewrite.types import Prompt

CLIP = 0.2
"""PPO's clip of the probability ratio."""


def train_groups(align_task: AlignTask, options: RunOptions, algo: GrpoSettings | RlooSettings) -> TrainingResult:
    """Trains on answers that the policy generates on the way. The steps that share a batch of answers are never split
    by a checkpoint, which holds no answers."""
    task, settings = align_task.training, options.settings
    silence_progress(options.progress)
    answers = _answers_per_batch(algo, options)
    tokenizer = load_training_tokenizer(task.base)
    arguments = _arguments(options, algo, task.metric, len(align_task.queries))
    steps = algo.steps * algo.iterations
    run = TrainingRun(options, task.metric, arguments.distributed_state.wait_for_everyone, steps)
    watch = CollapseWatch(align_task.limits)
    set_seed(settings.seed)
    model = load_policy(task.base, task.adapter, settings.attention)
    queries, prompts = select_fitting(align_task, model, tokenizer, algo.max_tokens)
    left_over = _left_over(len(queries), answers // algo.answers)
    rows = Dataset.from_dict({"prompt": prompts, "index": list(range(len(prompts)))})
    if is_main_process():
        lengths, device = [len(tokens) for tokens in encode(tokenizer, prompts)], arguments.device
        sharing = can_share(model) and not is_before_ampere(device)
        half = bool(arguments.bf16)
        estimate_online(task.base, settings, algo, lengths, device, half, world_size(), sharing).log()
    reward = TrlReward(queries, align_task.reward, tokenizer.eos_token_id)
    kind: Any = GrpoAlignmentTrainer if isinstance(algo, GrpoSettings) else RlooAlignmentTrainer
    trainer = kind(
        task,
        run.recorder,
        options.progress,
        model=model,
        reward_funcs=reward,
        args=arguments,
        train_dataset=rows,
        eval_dataset=rows.select(range(1)),
        processing_class=tokenizer,
        peft_config=lora_config(settings, task.adapter),
        callbacks=[*run.callbacks(), watch],
    )
    trainer.sharing = share_prompts(trainer)
    if not trainer.sharing:
        log_line("answers cannot share their prompt here: each is a row of its own, which takes more memory and time")
    pad_right(trainer)
    trainer.epochs_done = int(run.state.get("epoch", 0))
    if algo.engine == "server" and is_main_process():  # the one process that sends requests
        retry_generation(trainer.vllm_generation.vllm_client, algo.server_url)
    too_long = len(align_task.queries) - len(queries)
    facts = {"queries": len(queries), "too_long": too_long, "left_over": left_over}
    result = run_alignment(align_task, options, run, trainer, watch, facts)
    result.facts["answers"] = math.ceil(result.facts["done"] / steps) * answers
    return add_reward_time(result, reward.seconds, run)


def add_reward_time(result: TrainingResult, seconds: float, run: TrainingRun) -> TrainingResult:
    """Adds the reward's share of the training time since the run was started or resumed."""
    if run.recorder and seconds:
        spent = max(1e-9, run.recorder.metrics_log.seconds_of_leg - result.facts["evaluation_seconds"])
        result.facts.update(reward_seconds=round(seconds, 3), reward_share=round(min(1.0, seconds / spent), 4))
    return result


def select_fitting(
    task: AlignTask, model: Any, tokenizer: Any, max_tokens: int
) -> tuple[list[AlignQuery], list[Prompt]]:
    """The queries whose prompts leave room for an answer, and those prompts."""
    backend = TransformersBackend.around(model, tokenizer, 1)
    requests = [query.example.request for query in task.queries]
    fitted = fit_prompts(task.training.template, backend, requests, max_tokens)
    both = [(query, prompt) for query, (prompt, _) in zip(task.queries, fitted, strict=True) if prompt is not None]
    if not both:
        raise RewriteError("no query leaves room for an answer; set a smaller algo.max_tokens or show fewer candidates")
    if len(both) < len(task.queries):
        log_line(f"{len(task.queries) - len(both)} queries are too long and left out")
    return [query for query, _ in both], [prompt for _, prompt in both]


def _answers_per_batch(algo: GrpoSettings | RlooSettings, options: RunOptions) -> int:
    """Answers that all devices generate together; refuses settings that TRL would refuse less clearly."""
    settings = options.settings
    answers = settings.batch_size * settings.gradient_accumulation_steps * algo.steps * world_size()
    if answers % algo.answers:
        raise RewriteError(
            f"training.batch_size x gradient_accumulation_steps x algo.steps x devices is {answers}, no multiple of "
            f"algo.answers ({algo.answers})"
        )
    if algo.engine != "transformers" and not options.cuda:
        raise RewriteError(
            f"algo.engine: {algo.engine} (vLLM) needs a CUDA device to send weights to; set it to transformers"
        )
    return answers


def _left_over(queries: int, batch: int) -> int:
    """Queries that every epoch leaves out, different ones each time: TRL takes whole batches only."""
    if queries < batch:
        raise RewriteError(
            f"answers are generated for {batch} queries at once (training.batch_size x gradient_accumulation_steps x "
            f"algo.steps x devices / algo.answers), and there are {queries}; lower one of them, or give more queries"
        )
    if left := queries % batch:
        log_line(f"{left} of {queries} queries are left over in every epoch: answers are generated for {batch} at once")
    return left


def _arguments(options: RunOptions, algo: GrpoSettings | RlooSettings, metric: str, rows: int) -> Any:
    settings, use_vllm = options.settings, algo.engine != "transformers"
    arguments = training_arguments(options, metric) | {
        "num_generations": algo.answers,
        "num_generations_eval": 1,
        "max_completion_length": algo.max_tokens,
        "temperature": algo.temperature,
        "top_p": 1.0,
        "top_k": 0,
        "beta": algo.beta,
        "num_iterations": algo.iterations,
        "steps_per_generation": settings.gradient_accumulation_steps * algo.steps,
        "epsilon": CLIP,
        "logging_steps": options.logging_steps(rows * algo.answers * algo.iterations),
        "use_vllm": use_vllm,
    }
    if use_vllm:
        arguments |= {"vllm_mode": algo.engine, "vllm_gpu_memory_utilization": algo.gpu_memory}
        arguments |= {"vllm_server_base_url": algo.server_url} if algo.engine == "server" else {}
    else:  # check_finite stops a broken policy; here it would end the process, and on a GPU break the device
        arguments["generation_kwargs"] = {"remove_invalid_values": True}
    if isinstance(algo, GrpoSettings):
        return GRPOConfig(**arguments, loss_type=algo.loss, scale_rewards="group")
    return RLOOConfig(**arguments)
