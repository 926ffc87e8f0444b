"""`rewrite-train align`: a policy, queries and frozen retrievers -> a rewriter that finds more."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pipelines.evaluate.fusion_selection import FusionScore
from pipelines.runs import as_json, environment, write_files
from pipelines.train.align_data import AlignSource, Lessons, Start, StartSettings, find_start, read_lessons
from pipelines.train.report import training_page
from pipelines.train.rewards import RewardSettings, ToolReward
from pipelines.train.run_folder import begin, is_finished, nobody, remove_checkpoints, room_to_train
from pipelines.train.training_sources import DevJudge, DevSettings, choose_dev, spread
from retrievers.dense.encoder import fingerprint
from retrievers.errors import BadInput
from retrievers.kind import Context
from rewrite.align.settings import AlgoSettings, AlignTraining, CollapseLimits, DpoSettings
from rewrite.folder import RewriterCard, save_rewriter
from rewrite.settings import BackendSettings, TransformersSettings
from rewrite.sft.distributed import is_main_process, wait_for_all
from rewrite.sft.examples import write_examples
from rewrite.sft.reporting import check_reporters


@dataclass(frozen=True, slots=True)
class AlignConfig:
    """`rewrite-train align`."""

    output: str
    """The run folder; the rewriter comes to lie in its folder `rewriter`."""
    data: tuple[AlignSource, ...]
    start: StartSettings
    """The policy that is aligned, and the reference that it is held to."""
    algo: AlgoSettings
    """One kind: dpo, grpo, rloo, ppo, best-of-n."""
    reward: RewardSettings = field(default_factory=RewardSettings)
    training: AlignTraining = field(default_factory=AlignTraining)
    evaluation: DevSettings = field(default_factory=DevSettings)
    collapse: CollapseLimits = field(default_factory=CollapseLimits)
    backend: BackendSettings = field(default_factory=TransformersSettings)
    """Who draws the answers that are scored before training."""
    queries: int = 0
    """Queries at most, drawn by the seed; 0: all."""
    check: int = 64
    """Queries on which grpo, rloo and ppo are probed before they start."""

    def __post_init__(self) -> None:
        if not self.data:
            raise BadInput("there is nothing to learn from: data names no targets", "data")
        if self.queries < 0 or self.check < 1:
            raise BadInput("queries must not be negative, check at least 1")
        if self.backend.kind in ("rules", "replay"):
            raise BadInput(f"{self.backend.kind} always answers the same; take a model", "backend")


def run_align(config: AlignConfig, context: Context, resume: bool, cuda: bool) -> Path:
    """Trains and writes the rewriter's folder, metrics.json and report.html; a finished run is left as it is."""
    check_reporters(config.training.report_to)
    output, settings, seed = Path(config.output), config.evaluation, config.training.seed
    lessons = read_lessons(config.data, config.queries, seed)
    start = find_start(config.start, config.training.method, lessons)
    if is_main_process():
        begin(output, config, _mark(start, lessons, config), resume)
    if is_finished(output):
        remove_checkpoints(output, config.training)
        return output / "rewriter"
    from rewrite.align.alignment_trainer import AlignTask, RunOptions
    from rewrite.sft.dev_eval_trainer import RewriterTask, rewrite_dev

    reward = ToolReward(lessons.sources, lessons.template, config.reward, context)
    reward.open()
    dev = choose_dev(lessons.sources, settings.queries, seed)
    judge = DevJudge(lessons.sources, dev, settings, context, _seen(lessons)) if is_main_process() else None
    task = RewriterTask(
        start.model,
        lessons.template,
        (),
        [example for examples in dev for example in examples],
        judge or nobody,
        settings.metric,
        spread([len(examples) for examples in dev], settings.samples),
        settings.answer_tokens,
        settings.batch_size,
        start.adapter,
    )
    align_task = AlignTask(task, lessons.queries, reward, config.collapse)
    with room_to_train(output):
        from pipelines.train.algorithms import Work, run_algorithm

        options = RunOptions(config.training, output, resume, context.show_progress, cuda)
        work = Work(config.start, config.backend, context, lambda trained: card(config, lessons, start, trained, None))
        trained = run_algorithm(config.algo, align_task, options, work, config.check)
        if judge is not None:
            # What the best one wrote is known, unless it did so before the run was resumed.
            known = trained.written.get(trained.step)
            tried = judge.fusion(known or rewrite_dev(task, trained.model, trained.tokenizer, context.show_progress))
            metrics = {
                "algo": config.algo.kind,
                "raw": judge.raw(),
                "start": trained.facts["start"],
                "best": trained.best,
                "step": trained.step,
                "kept": trained.facts["kept"],
                "collapse": trained.facts["collapse"],
                "fusion": [asdict(each) for each in tried],
                "history": trained.history,
                "training": trained.facts,
            }
            page = training_page(output, config.algo.kind, metrics)
            write_files(output, {"metrics.json": as_json(metrics), "report.html": page})
            finished = card(config, lessons, start, trained, tried[0])
            save_rewriter(output / "rewriter", trained.model, trained.tokenizer, finished, lessons.template)
    wait_for_all()  # whoever returns finds the rewriter, and nobody reads a checkpoint any more
    remove_checkpoints(output, config.training)
    return output / "rewriter"


def _seen(lessons: Lessons) -> set[tuple[str, str]]:
    """The tools that fine-tuning or alignment has queries about."""
    tuned = {(source.name, tool) for source in lessons.sources for each in source.train for tool in each.gold}
    return tuned | {(query.source, tool) for query in lessons.queries for tool in query.example.gold}


def card(config: AlignConfig, lessons: Lessons, start: Start, trained: Any, chosen: FusionScore | None) -> RewriterCard:
    """What the aligned rewriter says of itself."""
    best: dict[str, float] = [row for row in trained.history if row["step"] == trained.step][-1]
    splits = [each.split for each in config.data]
    return RewriterCard(
        base=start.base,
        base_fingerprint=start.base_fingerprint,
        method=config.training.method,
        phrasing=str(lessons.sources[0].facts["phrasing"]),
        fusion=asdict(chosen.fusion) if chosen else {},
        metric=config.evaluation.metric,
        data=[source.told() | {"aligned_on": split} for source, split in zip(lessons.sources, splits, strict=True)],
        metrics={name.removeprefix("eval_"): float(value) for name, value in best.items() if name.startswith("eval_")},
        training={
            "algo": asdict(config.algo),
            "reward": asdict(config.reward),
            **asdict(config.training),
            **trained.facts,
        },
        environment=environment(),
        trained_by=f"{config.algo.kind} after {start.said}",
    )


def _mark(start: Start, lessons: Lessons, config: AlignConfig) -> dict[str, str]:
    """What a run must find unchanged when it goes on."""
    examples = [query.example for query in lessons.queries]
    dev: Sequence[Any] = [each for source in lessons.sources for each in source.dev]
    text = write_examples([*examples, *dev]) + lessons.template.dump()
    marks = {
        "policy": fingerprint(start.adapter or start.model),
        "queries": hashlib.sha256(text.encode()).hexdigest()[:16],
    }
    if isinstance(config.algo, DpoSettings) and config.algo.pairs:
        from rewrite.align.pairs import read_pairs, write_pairs

        pairs = write_pairs(read_pairs(Path(config.algo.pairs)))
        marks["pairs"] = hashlib.sha256(pairs.encode()).hexdigest()[:16]
    return marks
