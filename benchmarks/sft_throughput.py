"""Compare our fine-tuning with a plain TRL script: the same rows and settings, in one run.

Ours trains without the padding mask (`drop_padding_mask`), TRL with it.

python benchmarks/sft_throughput.py TARGETS [--base bundled:smollm2-135m] [--method lora] [--steps 60] [--batch 32]

TARGETS is a folder that `rewrite-train targets` wrote. Each trains `--rounds` times, in turn; the best round counts.
Prints tokens per second of both, their ratio, and the share of the time spent outside training steps.
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from harness import make_parser, write_json
from transformers import TrainerCallback
from trl.trainer.sft_config import SFTConfig
from trl.trainer.sft_trainer import SFTTrainer

from pipelines.models import find_model
from pipelines.runs import environment
from rewrite.settings import LoraSettings, SftSettings
from rewrite.sft import models
from rewrite.sft import train as ours
from rewrite.sft.dev_eval_trainer import RewriterTask
from rewrite.sft.examples import Example, read_examples
from rewrite.sft.rows import TrainingRows, build_rows
from rewrite.sft.run import RunOptions
from rewrite.sft.train import RewriterTrainer
from rewrite.template import Template, load_template


class Clock(TrainerCallback):
    """Measures the seconds from the first to the last step, and the part spent inside steps."""

    def __init__(self) -> None:
        self.started = self.inside = self.whole = 0.0
        self._step = 0.0

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Start the clock; the first step is not timed."""
        self._step = time.perf_counter()
        if state.global_step == 1:
            _wait()
            self.started = self._step = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Add the step's time."""
        if state.global_step > 1:
            _wait()
            now = time.perf_counter()
            self.inside += now - self._step
            self.whole = now - self.started


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


@dataclass(frozen=True)
class TrainingCase:
    """Model, data and settings of both trainings."""

    base: Path
    template: Template
    examples: list[Example]
    settings: SftSettings

    def rows(self) -> tuple[TrainingRows, Any]:
        """Return the rows and their tokenizer."""
        tokenizer = models.load_training_tokenizer(self.base)
        return build_rows(self.template, tokenizer, self.examples, self.settings.max_tokens), tokenizer


def train_ours(bench: TrainingCase) -> Clock:
    """Train by `rewrite.sft.train`; the evaluation of four dev examples at the end is not timed."""
    clock = Clock()
    task = RewriterTask(
        bench.base, bench.template, bench.examples, bench.examples[:4], lambda _: {"score": 1.0}, "score"
    )
    before = RewriterTrainer.__init__

    def listening(self: RewriterTrainer, *arguments: Any, **settings: Any) -> None:
        before(self, *arguments, **settings)
        self.add_callback(clock)

    with tempfile.TemporaryDirectory() as work:
        RewriterTrainer.__init__ = listening  # type: ignore[method-assign]
        try:
            ours.train(task, RunOptions(bench.settings, Path(work), False, False, torch.cuda.is_available()))
        finally:
            RewriterTrainer.__init__ = before  # type: ignore[method-assign]
    return clock


def train_plain(bench: TrainingCase) -> Clock:
    """Train by TRL as its documentation shows."""
    clock, settings = Clock(), bench.settings
    rows, tokenizer = bench.rows()
    cuda = torch.cuda.is_available()
    with tempfile.TemporaryDirectory() as work:
        trainer = SFTTrainer(
            model=models.load_base(bench.base),
            args=SFTConfig(
                output_dir=work,
                num_train_epochs=settings.epochs,
                per_device_train_batch_size=settings.batch_size,
                learning_rate=settings.learning_rate,
                max_length=settings.max_tokens,
                gradient_checkpointing=False,
                bf16=cuda,
                use_cpu=not cuda,
                seed=settings.seed,
                save_strategy="no",
                report_to="none",
                disable_tqdm=True,
            ),
            train_dataset=Dataset.from_dict({"prompt": rows.prompts, "completion": rows.completions}),
            processing_class=tokenizer,
            peft_config=models.lora_config(settings),
            callbacks=[clock],
        )
        trainer.train()
    return clock


def main() -> None:
    """Train in turn, print the best of each."""
    parser = make_parser(__doc__)
    parser.add_argument("targets", type=Path)
    parser.add_argument("--base", default="bundled:smollm2-135m")
    parser.add_argument("--method", choices=["lora", "full"], default="lora")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    settings = SftSettings(
        options.method, LoraSettings(), 1.0, options.batch, evaluations=1, max_tokens=384, report_to=(), packing=False
    )
    examples = read_examples(options.targets / "train.jsonl")[: options.steps * options.batch]
    bench = TrainingCase(find_model(options.base), load_template(options.targets), examples, settings)
    steps = -(-len(examples) // options.batch)
    if steps < 3:
        raise SystemExit(f"{len(examples)} examples make {steps} steps; at least 3 are needed")
    tokens = bench.rows()[0].tokens * (1 - 1 / steps)  # without the first step
    best: dict[str, Clock] = {}
    seconds: dict[str, list[float]] = {}
    for _ in range(options.rounds):
        for name, run in {"ours": train_ours, "plain TRL": train_plain}.items():
            clock = run(bench)
            seconds.setdefault(name, []).append(clock.whole)
            best[name] = min(best.get(name, clock), clock, key=lambda run: run.whole)
    summary = f"{options.method}, batch {options.batch}, {len(examples)} examples, {tokens:,.0f} tokens"
    print(f"{environment()['machine']}; {summary}")
    for name, clock in best.items():
        outside = 1 - clock.inside / clock.whole
        print(f"{name:>10}: {tokens / clock.whole:10,.0f} tokens per second, {outside:.1%} of the time outside steps")
    ratio = best["plain TRL"].whole / best["ours"].whole
    print(f"     ratio: {ratio:.3f} (ours against plain TRL; above 1: ours is faster)")
    write_json(options.out, {"tokens": tokens, "seconds": seconds})


if __name__ == "__main__":
    main()
