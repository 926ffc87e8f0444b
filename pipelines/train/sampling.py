"""Sample answers from a policy and score them: `rewrite-train probe` and `pairs`, and the start of alignments."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated

from annotated_types import Ge

from pipelines.evaluate.rewritten_systems import free_memory
from pipelines.rewriters import find_parts, load_rewriter
from pipelines.runs import as_json, write_files
from pipelines.train.policy import StartSettings, check_backend, find_start
from pipelines.train.rewards import RewardSettings, ToolReward
from pipelines.train.run_folder import begin_samples
from pipelines.train.sources import AlignData, AlignSource, read_align_data
from retrievers.kind import Context
from rewrite.align.pairs import PAIRS_FILE, Pair, make_pairs, write_pairs
from rewrite.align.probe import Probe, probe
from rewrite.align.samples import AlignQuery, ScoredSample, draw_samples, read_samples
from rewrite.align.settings import PairSettings, SampleSettings
from rewrite.settings import BackendSettings, TransformersSettings
from rewrite.sft.distributed import is_main_process, rank, wait_for_all, world_size
from rewrite.template import TEMPLATE_FILE


@dataclass(frozen=True, slots=True)
class SamplingConfig:
    """Settings that `probe` and `pairs` share."""

    output: str
    """The folder to write: the samples, then the probe or the pairs."""
    data: tuple[AlignSource, ...]
    """Targets folders."""
    start: StartSettings
    """The rewriter that answers."""
    reward: RewardSettings = field(default_factory=RewardSettings)
    samples: SampleSettings = field(default_factory=SampleSettings)
    pairing: PairSettings = field(default_factory=PairSettings)
    backend: BackendSettings = field(default_factory=TransformersSettings)
    queries: Annotated[int, Ge(0)] = 0
    """Queries at most, drawn by the seed; 0: all."""

    def __post_init__(self) -> None:
        check_backend(self.backend)


@dataclass(frozen=True, slots=True)
class ProbeConfig(SamplingConfig):
    """`rewrite-train probe`."""

    queries: Annotated[int, Ge(0)] = 200


@dataclass(frozen=True, slots=True)
class PairsConfig(SamplingConfig):
    """`rewrite-train pairs`."""


def run_probe(config: SamplingConfig, context: Context) -> Probe:
    """Sample, score, and estimate the possible gain; probe.json is written last."""
    _, samples = _sample(config, context)
    result = probe(samples, config.pairing)
    if is_main_process():
        write_files(Path(config.output), {"probe.json": as_json(asdict(result))})
    return result


def run_pairs(config: PairsConfig, context: Context) -> tuple[Probe, list[Pair]]:
    """Sample, score and pair; pairs.jsonl is written last."""
    data, samples = _sample(config, context)
    result, pairs = probe(samples, config.pairing), make_pairs(samples, config.pairing)
    files = {"probe.json": as_json(asdict(result)), TEMPLATE_FILE: data.template.dump(), PAIRS_FILE: write_pairs(pairs)}
    if is_main_process():
        write_files(Path(config.output), files)
    return result, pairs


def _sample(config: SamplingConfig, context: Context) -> tuple[AlignData, list[ScoredSample]]:
    output = Path(config.output)
    data = read_align_data(config.data, config.queries, config.samples.seed)
    find_start(config.start, "", data)
    reward = ToolReward(data.sources, data.template, config.reward, context)
    reward.open()
    if is_main_process():
        begin_samples(output, config)
    return data, sample_answers(output, config.start, config.backend, data.queries, reward, config.samples, context)


def sample_answers(
    folder: Path,
    start: StartSettings,
    backend: BackendSettings,
    queries: list[AlignQuery],
    reward: ToolReward,
    settings: SampleSettings,
    context: Context,
) -> list[ScoredSample]:
    """Sample and score answers to the queries; those in the folder are reused. Several processes share the work."""
    wanted = {query.key for query in queries}
    known = {sample.key for sample in read_samples(folder)} if folder.is_dir() else set()
    if not wanted <= known:
        rewriter_settings = start.rewriter(backend)
        rewriter = load_rewriter(rewriter_settings, find_parts(rewriter_settings), context.device)
        progress, part = context.show_progress and is_main_process(), (rank(), world_size())
        draw_samples(rewriter, queries, reward, settings, folder, progress, part)
        del rewriter
        free_memory()
    wait_for_all()
    return [sample for sample in read_samples(folder) if sample.key in wanted]
