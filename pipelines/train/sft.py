"""`rewrite-train sft`: targets, base model and frozen retrievers -> a rewriter."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pipelines.evaluate.fusion_selection import FusionScore
from pipelines.models import find_model
from pipelines.runs import as_json, environment, write_files
from pipelines.train.report import training_page
from pipelines.train.run_folder import begin, is_finished, nobody, remove_checkpoints, room_to_train
from pipelines.train.training_sources import DevJudge, DevSettings, SftSource, Source, choose_dev, read_sources, spread
from retrievers.dense.encoder import fingerprint
from retrievers.errors import BadInput
from retrievers.kind import Context
from rewrite.folder import RewriterCard, save_rewriter
from rewrite.settings import SftSettings
from rewrite.sft.distributed import is_main_process, wait_for_all
from rewrite.sft.examples import mix_examples, write_examples
from rewrite.sft.reporting import check_reporters
from rewrite.template import Template


@dataclass(frozen=True, slots=True)
class SftConfig:
    """`rewrite-train sft`."""

    output: str
    """The run folder; the rewriter comes to lie in its folder `rewriter`."""
    data: tuple[SftSource, ...]
    base: str = "bundled:smollm2-135m"
    """A Hugging Face id, a folder, or a bundled model; it needs a chat template."""
    training: SftSettings = field(default_factory=SftSettings)
    evaluation: DevSettings = field(default_factory=DevSettings)

    def __post_init__(self) -> None:
        if not self.data:
            raise BadInput("there is nothing to learn from: data names no targets", "data")


def run_sft(config: SftConfig, context: Context, resume: bool, cuda: bool) -> Path:
    """Trains and writes the rewriter's folder, metrics.json and report.html; a finished run is left as it is."""
    check_reporters(config.training.report_to)
    output, settings, seed = Path(config.output), config.evaluation, config.training.seed
    sources, template = read_sources(config.data)
    base = find_model(config.base)
    mark = _mark(base, sources, template)
    if is_main_process():
        begin(output, config, mark, resume)
    if is_finished(output):
        remove_checkpoints(output, config.training)
        return output / "rewriter"
    from rewrite.sft.dev_eval_trainer import RewriterTask, rewrite_dev
    from rewrite.sft.train import train

    dev = choose_dev(sources, settings.queries, seed)
    judge = DevJudge(sources, dev, settings, context) if is_main_process() else None
    task = RewriterTask(
        base,
        template,
        mix_examples([(source.train, source.weight) for source in sources], seed),
        [example for examples in dev for example in examples],
        judge or nobody,
        settings.metric,
        spread([len(examples) for examples in dev], settings.samples),
        settings.answer_tokens,
        settings.batch_size,
    )
    with room_to_train(output):
        trained = train(task, config.training, output, resume, context.show_progress, cuda)
        if judge is not None:
            # What the best one wrote is known, unless it did so before the run was resumed.
            known = trained.written.get(trained.step)
            tried = judge.fusion(known or rewrite_dev(task, trained.model, trained.tokenizer, context.show_progress))
            metrics = {
                "raw": judge.raw(),
                "best": trained.best,
                "step": trained.step,
                "fusion": [asdict(each) for each in tried],
                "history": trained.history,
                "training": trained.facts,
            }
            page = training_page(output, "fine-tuning", metrics)
            write_files(output, {"metrics.json": as_json(metrics), "report.html": page})
            card = _card(config, sources, trained, tried[0], mark["base"])
            save_rewriter(output / "rewriter", trained.model, trained.tokenizer, card, template)
    wait_for_all()  # whoever returns finds the rewriter, and nobody reads a checkpoint any more
    remove_checkpoints(output, config.training)
    return output / "rewriter"


def _card(
    config: SftConfig, sources: Sequence[Source], trained: Any, chosen: FusionScore, base_fingerprint: str
) -> RewriterCard:
    best: dict[str, float] = next(row for row in trained.history if row["step"] == trained.step)
    return RewriterCard(
        base=config.base,
        base_fingerprint=base_fingerprint,
        method=config.training.method,
        phrasing=str(sources[0].facts["phrasing"]),
        fusion=asdict(chosen.fusion),
        metric=config.evaluation.metric,
        data=[source.told() for source in sources],
        metrics={name.removeprefix("eval_"): float(value) for name, value in best.items() if name.startswith("eval_")},
        training={**asdict(config.training), **trained.facts},
        environment=environment(),
    )


def _mark(base: Path, sources: Sequence[Source], template: Template) -> dict[str, str]:
    """What a run must find unchanged when it goes on."""
    text = "".join(write_examples([*source.train, *source.dev]) for source in sources) + template.dump()
    return {"base": fingerprint(base), "targets": hashlib.sha256(text.encode()).hexdigest()[:16]}
