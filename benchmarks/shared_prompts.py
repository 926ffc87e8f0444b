"""Compare shared prompts with TRL, which reads the prompt again for each answer: scores and gradient of a GRPO batch.

python benchmarks/shared_prompts.py [--model bundled:smollm2-135m] [--prompts 1] [--answers 8] [--prompt-tokens 256]

Log-probabilities of the answers' tokens and the gradient of a loss over them, forward and backward, in turn, `--rounds`
times after one that does not count. Rows with right padding (no mask) are measured as well. On CUDA in bfloat16 by
autocast, as in training. Also prints the largest difference between the scores.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import torch
from harness import make_parser, write_json
from torch import Tensor
from trl.trainer.utils import add_fused_lm_head

from pipelines.models import find_model
from pipelines.runs import environment
from rewrite.sft.models import load_policy
from rewrite.speedups.right_padding import pad_right
from rewrite.speedups.shared_prompts import share_prompts

Batch = dict[str, Tensor]


def batch(options: argparse.Namespace, vocabulary: int) -> Batch:
    """Random tokens: prompts of nearly the same length, answers of half to full length."""
    torch.manual_seed(0)
    prompts, answers, width, kept = options.prompts, options.answers, options.prompt_tokens, options.answer_tokens
    rows = prompts * answers
    prompt_ids = torch.randint(5, vocabulary, (prompts, width)).repeat_interleave(answers, 0)
    lead = torch.randint(0, width // 8, (prompts,)).repeat_interleave(answers)
    ends = width + torch.randint(kept // 2, kept + 1, (rows,))
    positions = torch.arange(width + kept)
    ids = torch.cat([prompt_ids, torch.randint(5, vocabulary, (rows, kept))], 1)
    mask = ((positions >= lead[:, None]) & (positions < ends[:, None])).long()
    labels = ids.masked_fill((mask == 0) | (positions < width), -100)
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def step(model: Any, rows: Batch, kept: int, device: torch.device) -> tuple[Tensor, float]:
    """Return the scores and the seconds of a forward and backward pass."""
    model.zero_grad()
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    half = torch.autocast("cuda", torch.bfloat16) if device.type == "cuda" else nullcontext()
    wait()
    started = time.perf_counter()
    with half:
        scores = model(**rows, fused_lm_head=True).log_probs[:, -kept:]
    weights = torch.linspace(-1, 1, len(scores), device=device)[:, None]
    (scores * weights).sum().backward()
    wait()
    return scores.detach().float(), time.perf_counter() - started


def main() -> None:
    """Measure all ways in turn, print."""
    parser = make_parser(__doc__)
    parser.add_argument("--model", default="bundled:smollm2-135m")
    parser.add_argument("--prompts", type=int, default=1)
    parser.add_argument("--answers", type=int, default=8)
    parser.add_argument("--prompt-tokens", type=int, default=256)
    parser.add_argument("--answer-tokens", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    ways: dict[str, Callable[[Any], object]] = {
        "TRL": lambda _: None,
        "right padding": pad_right,
        "shared": share_prompts,
    }
    models = {name: _model(options.model, device, way) for name, way in ways.items()}
    rows = {key: tensor.to(device) for key, tensor in batch(options, models["TRL"].config.vocab_size).items()}
    scores = {name: step(model, rows, options.answer_tokens, device)[0] for name, model in models.items()}
    difference = {name: float((values - scores["TRL"]).abs().max()) for name, values in scores.items()}
    seconds: dict[str, list[float]] = {name: [] for name in models}
    for _ in range(options.rounds):
        for name, model in models.items():
            seconds[name].append(step(model, rows, options.answer_tokens, device)[1])
    for name, values in seconds.items():
        ratio = min(seconds["TRL"]) / min(values)
        print(f"{name}: {min(values):.3f} s, {ratio:.2f} times TRL's speed, scores differ by {difference[name]:.1e}")
    write_json(options.out, {"seconds": seconds, "difference": difference, "environment": environment()})


def _model(name: str, device: torch.device, prepare: Callable[[Any], object]) -> Any:
    model = load_policy(find_model(name), None).to(device).train()
    add_fused_lm_head(model)
    args = SimpleNamespace(device=device, gradient_checkpointing=False)
    prepare(SimpleNamespace(model=model, ref_model=None, args=args))
    return model


if __name__ == "__main__":
    main()
