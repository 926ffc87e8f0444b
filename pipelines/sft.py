"""`rewrite-train sft`: targets, base model and frozen retrievers -> a rewriter."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from pipelines import config as configs
from pipelines.choosing import Tried
from pipelines.lessons import TOLD, DevJudge, DevSettings, SftSource, Source, choose_dev, read_sources, spread
from pipelines.models import find_model
from pipelines.runs import as_json, environment, write_files
from retrievers.encoder import fingerprint
from retrievers.errors import BadInput, OutOfDisk
from retrievers.index.files import disk_room
from retrievers.kinds import Context
from rewrite.folder import CARD, Card, save_folder
from rewrite.settings import SftSettings
from rewrite.sft.examples import mix, write_examples
from rewrite.sft.ranks import first
from rewrite.sft.reporting import check_reporters
from rewrite.template import Template
from rewrite.types import Rewrite


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
    """Trains and writes the rewriter's folder, with metrics.json beside it; a finished run is left as it is."""
    check_reporters(config.training.report_to)
    output, settings, seed = Path(config.output), config.evaluation, config.training.seed
    sources, template = read_sources(config.data)
    base = find_model(config.base)
    mark = _mark(base, sources, template)
    if first():
        _begin(output, config, mark, resume)
    if is_finished(output):
        return output / "rewriter"
    from rewrite.sft.judged import Task, rewritten
    from rewrite.sft.train import train

    dev = choose_dev(sources, settings.queries, seed)
    judge = DevJudge(sources, dev, settings, context) if first() else None
    task = Task(
        base,
        template,
        mix([(source.train, source.weight) for source in sources], seed),
        [example for examples in dev for example in examples],
        judge or _nobody,
        settings.metric,
        spread([len(examples) for examples in dev], settings.samples),
        settings.answer_tokens,
        settings.batch_size,
    )
    with _disk_room(output):
        trained = train(task, config.training, output, resume, context.show_progress, cuda)
        if judge is not None:
            tried = judge.fusion(rewritten(task, trained.model, trained.tokenizer, context.show_progress))
            metrics = {
                "raw": judge.raw(),
                "best": trained.best,
                "step": trained.step,
                "fusion": [asdict(each) for each in tried],
                "history": trained.history,
                "training": trained.facts,
            }
            write_files(output, {"metrics.json": as_json(metrics)})
            card = _card(config, sources, trained, tried[0], mark["base"])
            save_folder(output / "rewriter", trained.model, trained.tokenizer, card, template)
    return output / "rewriter"


def _nobody(rewrites: Sequence[Rewrite]) -> dict[str, float]:
    raise RuntimeError("only the first process judges")


@contextmanager
def _disk_room(output: Path) -> Iterator[None]:
    try:
        with disk_room(output):
            yield
    except OutOfDisk as error:
        raise OutOfDisk(
            f"no room left to write in {output}; its last whole checkpoint is kept: make room, then go on with "
            "`--resume`"
        ) from error


def _card(config: SftConfig, sources: Sequence[Source], trained: Any, chosen: Tried, base_fingerprint: str) -> Card:
    best: dict[str, float] = next(row for row in trained.history if row["step"] == trained.step)
    return Card(
        base=config.base,
        base_fingerprint=base_fingerprint,
        method=config.training.method,
        phrasing=str(sources[0].facts["phrasing"]),
        fusion=asdict(chosen.fusion),
        metric=config.evaluation.metric,
        data=[{key: source.facts[key] for key in TOLD} | {"weight": source.weight} for source in sources],
        metrics={name.removeprefix("eval_"): float(value) for name, value in best.items() if name.startswith("eval_")},
        training={**asdict(config.training), **trained.facts},
        environment=environment(),
    )


def _mark(base: Path, sources: Sequence[Source], template: Template) -> dict[str, str]:
    """What a run must find unchanged when it goes on."""
    text = "".join(write_examples([*source.train, *source.dev]) for source in sources) + template.dump()
    return {"base": fingerprint(base), "targets": hashlib.sha256(text.encode()).hexdigest()[:16]}


def is_finished(output: Path) -> bool:
    """True where the run in a folder has come to its end."""
    return (output / "rewriter" / CARD).exists()


def _begin(output: Path, config: SftConfig, mark: dict[str, str], resume: bool) -> None:
    """Refuses to mix two runs in one folder, and notes what this one is."""
    noted = output / "run.json"
    used = is_finished(output) or any((output / "checkpoints").glob("checkpoint-*"))
    if used and not resume:
        raise BadInput(f"{output} holds a run already; go on with `--resume`, or name another output")
    if used and noted.exists():
        before = configs.load(output / "config.yaml", SftConfig)
        if _silent(before) != _silent(config):
            raise BadInput(f"the run in {output} was started with another config; resume it with {output}/config.yaml")
        changed = [what for what, value in json.loads(noted.read_text()).items() if mark[what] != value]
        if changed:
            raise BadInput(f"the {changed[0]} of the run in {output} changed since it was started; name another output")
    if not is_finished(output):
        files = {"config.yaml": configs.dump(config), "environment.json": as_json(environment())}
        write_files(output, files | {"run.json": as_json(mark)})


def _silent(config: SftConfig) -> SftConfig:
    """The config without what changes no weight: where figures go, where the run lies, how many are asked at a time."""
    same = replace(config.evaluation, batch_size=1, samples=0)
    return replace(config, output="", evaluation=same, training=replace(config.training, report_to=()))
