"""Answers drawn from a policy and scored: what `probe`, `pairs`, DPO and best of n begin with."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path

from pipelines.evaluate.rewritten_systems import free_memory
from pipelines.rewriters import find_parts, load_rewriter
from pipelines.runs import as_json, write_files
from pipelines.train.align_data import AlignSource, Lessons, StartSettings, find_start, read_lessons
from pipelines.train.rewards import RewardSettings, ToolReward
from pipelines.train.run_folder import begin_drawing
from retrievers.errors import BadInput
from retrievers.kind import Context
from rewrite.align.pairs import PAIRS_FILE, Pair, make_pairs, write_pairs
from rewrite.align.probe import Probe, probe
from rewrite.align.query import AlignQuery
from rewrite.align.samples import ScoredSample, draw_samples, read_samples
from rewrite.align.settings import PairSettings, SampleSettings
from rewrite.settings import BackendSettings, TransformersSettings
from rewrite.sft.distributed import is_main_process, rank, wait_for_all, world_size
from rewrite.template import TEMPLATE_FILE as TEMPLATE


@dataclass(frozen=True, slots=True)
class DrawConfig:
    """What both commands are given."""

    output: str
    """The folder to write: the samples as they come, then what was made of them."""
    data: tuple[AlignSource, ...]
    start: StartSettings
    """The rewriter that is asked."""
    reward: RewardSettings = field(default_factory=RewardSettings)
    samples: SampleSettings = field(default_factory=SampleSettings)
    pairing: PairSettings = field(default_factory=PairSettings)
    backend: BackendSettings = field(default_factory=TransformersSettings)
    queries: int = 0
    """Queries at most, drawn by the seed; 0: all."""

    def __post_init__(self) -> None:
        if not self.data:
            raise BadInput("there is nothing to learn from: data names no targets", "data")
        if self.queries < 0:
            raise BadInput("queries must not be negative", "queries")
        if self.backend.kind in ("rules", "replay"):
            raise BadInput(f"{self.backend.kind} always answers the same; take a model", "backend")


@dataclass(frozen=True, slots=True)
class ProbeConfig(DrawConfig):
    """`rewrite-train probe`."""

    queries: int = 200


@dataclass(frozen=True, slots=True)
class PairsConfig(DrawConfig):
    """`rewrite-train pairs`."""


def run_probe(config: DrawConfig, context: Context) -> Probe:
    """Draws, scores, and says whether there is anything to gain; probe.json is the last file written."""
    _, samples = _drawn(config, context)
    found = probe(samples, config.pairing)
    if is_main_process():
        write_files(Path(config.output), {"probe.json": as_json(asdict(found))})
    return found


def run_pairs(config: PairsConfig, context: Context) -> tuple[Probe, list[Pair]]:
    """Draws, scores and pairs; pairs.jsonl is the last file written."""
    lessons, samples = _drawn(config, context)
    found, pairs = probe(samples, config.pairing), make_pairs(samples, config.pairing)
    files = {"probe.json": as_json(asdict(found)), TEMPLATE: lessons.template.dump(), PAIRS_FILE: write_pairs(pairs)}
    if is_main_process():
        write_files(Path(config.output), files)
    return found, pairs


def _drawn(config: DrawConfig, context: Context) -> tuple[Lessons, list[ScoredSample]]:
    lessons = read_lessons(config.data, config.queries, config.samples.seed)
    find_start(config.start, "", lessons)
    reward = ToolReward(lessons.sources, lessons.template, config.reward, context)
    reward.open()
    if is_main_process():
        begin_drawing(Path(config.output), config)
    samples = drawn(Path(config.output), config.start, config.backend, lessons.queries, reward, config.samples, context)
    return lessons, samples


def drawn(
    folder: Path,
    start: StartSettings,
    backend: BackendSettings,
    queries: list[AlignQuery],
    reward: ToolReward,
    settings: SampleSettings,
    context: Context,
) -> list[ScoredSample]:
    """The samples of the queries; what the folder holds is not drawn again. Several processes share the work."""
    wanted = {query.key for query in queries}
    known = {sample.key for sample in read_samples(folder)} if folder.is_dir() else set()
    if not wanted <= known:
        asked = start.asked(backend)
        rewriter = load_rewriter(asked, find_parts(asked), context.device)
        progress, part = context.show_progress and is_main_process(), (rank(), world_size())
        draw_samples(rewriter, queries, reward, settings, folder, progress, part)
        del rewriter
        free_memory()
    wait_for_all()
    return [sample for sample in read_samples(folder) if sample.key in wanted]
