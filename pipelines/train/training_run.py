"""Shared by fine-tuning and alignment: make the task of a run, and write the files of a finished one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pipelines.evaluate.fusion_selection import FusionScore
from pipelines.runs import as_json, environment, write_files
from pipelines.train.dev_evaluator import DevEvaluator, DevSettings, choose_dev, spread
from pipelines.train.report import training_page
from pipelines.train.sources import TargetsFolder, judging
from retrievers.kind import Context
from retrievers.types import ToolId
from rewrite.folder import RewriterCard, save_rewriter
from rewrite.settings import SftSettings
from rewrite.sft.dev_eval_trainer import RewriterTask, rewrite_dev
from rewrite.sft.distributed import is_main_process
from rewrite.sft.examples import Example
from rewrite.sft.run import TrainingResult
from rewrite.template import Template
from rewrite.types import Rewrite

NUM_SAMPLES = 4
"""Rewrites in the log of every evaluation."""


def make_task(
    model: Path,
    template: Template,
    sources: Sequence[TargetsFolder],
    settings: DevSettings,
    seed: int,
    context: Context,
    examples: Sequence[Example] = (),
    adapter: Path | None = None,
    seen_tools: Collection[tuple[str, ToolId]] = (),
) -> tuple[RewriterTask, DevEvaluator | None]:
    """The task with its dev set; the evaluator exists in the main process only."""
    judges = judging(sources)
    dev = choose_dev(judges, settings.queries, seed)
    evaluator = DevEvaluator(judges, dev, settings, context, seen_tools) if is_main_process() else None
    task = RewriterTask(
        model,
        template,
        examples,
        [example for part in dev for example in part],
        evaluator or _not_main_process,
        settings.metric,
        spread([len(part) for part in dev], NUM_SAMPLES),
        settings.max_tokens,
        settings.batch_size,
        adapter,
    )
    return task, evaluator


def _not_main_process(rewrites: Sequence[Rewrite]) -> dict[str, float]:
    raise RuntimeError("dev is evaluated in the main process only")


def write_results(
    output: Path,
    task: RewriterTask,
    evaluator: DevEvaluator,
    result: TrainingResult,
    algo: str,
    facts: dict[str, Any],
    card: Callable[[FusionScore], RewriterCard],
    context: Context,
) -> None:
    """Choose the fusion on dev, and write metrics.json, report.html and, last, the rewriter."""
    # The best model's rewrites are known, unless it wrote them before the run was resumed.
    rewrites = result.written.get(result.step) or rewrite_dev(
        task, result.model, result.tokenizer, context.show_progress
    )
    fusions = evaluator.choose_fusion(rewrites)
    metrics = facts | {
        "raw": evaluator.raw_scores(),
        "best": result.best,
        "step": result.step,
        "fusion": [asdict(fusion) for fusion in fusions],
        "history": result.history,
        "training": result.facts,
    }
    page = training_page(output, algo, metrics)
    write_files(output, {"metrics.json": as_json(metrics), "report.html": page})
    save_rewriter(output / "rewriter", result.model, result.tokenizer, card(fusions[0]), task.template)


def make_card(
    base: tuple[str, str],
    settings: SftSettings,
    metric: str,
    sources: Sequence[TargetsFolder],
    result: TrainingResult,
    fusion: FusionScore | None,
    **facts: Any,
) -> RewriterCard:
    """The rewriter's card. `base`: name and fingerprint of the base model."""
    best = [row for row in result.history if row["step"] == result.step][-1]
    scores = {name.removeprefix("eval_"): float(value) for name, value in best.items() if name.startswith("eval_")}
    options = {
        "data": [source.summary() for source in sources],
        "training": {**asdict(settings), **result.facts},
    } | facts
    return RewriterCard(
        base=base[0],
        base_fingerprint=base[1],
        method=settings.method,
        phrasing=str(sources[0].facts["phrasing"]),
        fusion=asdict(fusion.fusion) if fusion else {},
        metric=metric,
        metrics=scores,
        environment=environment(),
        **options,
    )
