"""`rewrite-train align`: a policy, queries and frozen retrievers -> a rewriter that finds more."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from annotated_types import Ge

from pipelines.evaluate.fusion_selection import FusionScore
from pipelines.train.dev_evaluator import DevSettings
from pipelines.train.policy import StartPolicy, StartSettings, check_backend, find_start
from pipelines.train.rewards import RewardSettings, ToolReward
from pipelines.train.run_folder import begin_run, close_run, hash_text, is_finished, room_to_train
from pipelines.train.sources import AlignData, AlignSource, read_align_data
from retrievers.dense.encoder import fingerprint
from retrievers.kind import Context
from rewrite.align.pairs import read_pairs, write_pairs
from rewrite.align.settings import AlgoSettings, AlignTraining, CollapseLimits, DpoSettings
from rewrite.folder import RewriterCard
from rewrite.settings import BackendSettings, TransformersSettings
from rewrite.sft.distributed import is_main_process
from rewrite.sft.examples import write_examples
from rewrite.sft.reporting import check_reporters

if TYPE_CHECKING:
    from rewrite.sft.run import TrainingResult


@dataclass(frozen=True, slots=True)
class AlignConfig:
    """`rewrite-train align`."""

    output: str
    """The run folder; the rewriter is written to its folder `rewriter`."""
    data: tuple[AlignSource, ...]
    """Targets folders."""
    start: StartSettings
    """The policy that is aligned, and the reference that it is held to."""
    algo: AlgoSettings
    """One kind: dpo, grpo, rloo, ppo, best-of-n."""
    reward: RewardSettings = field(default_factory=RewardSettings)
    training: AlignTraining = field(default_factory=AlignTraining)
    evaluation: DevSettings = field(default_factory=DevSettings)
    collapse: CollapseLimits = field(default_factory=CollapseLimits)
    backend: BackendSettings = field(default_factory=TransformersSettings)
    """The backend of the answers that are scored before training."""
    queries: Annotated[int, Ge(0)] = 0
    """Queries at most, drawn by the seed; 0: all."""
    probe_queries: Annotated[int, Ge(1)] = 64
    """Queries of the probe before grpo, rloo and ppo start."""

    def __post_init__(self) -> None:
        check_backend(self.backend)


def run_align(config: AlignConfig, context: Context, resume: bool, cuda: bool) -> Path:
    """Train, and write the rewriter's folder, metrics.json and report.html; a finished run is left as it is."""
    check_reporters(config.training.report_to)
    output, training = Path(config.output), config.training
    data = read_align_data(config.data, config.queries, training.seed)
    start = find_start(config.start, training.method, data)
    if is_main_process():
        begin_run(output, config, _input_hashes(start, data, config), resume)
    if is_finished(output):
        return close_run(output, training)
    from pipelines.train.algorithms import SamplingSetup, run_algorithm
    from pipelines.train.training_run import make_task, write_results
    from rewrite.align.alignment_trainer import AlignTask
    from rewrite.sft.run import RunOptions

    card = partial(_card, config, start, data)
    reward = ToolReward(data.sources, data.template, config.reward, context)
    reward.open()
    task, evaluator = make_task(
        start.model,
        data.template,
        data.sources,
        config.evaluation,
        training.seed,
        context,
        adapter=start.adapter,
        seen_tools=data.seen_tools(),
    )
    with room_to_train(output):
        options = RunOptions(training, output, resume, context.show_progress, cuda)
        setup = SamplingSetup(
            config.start, config.backend, context, lambda result: _card(config, start, data, result, None)
        )
        align_task = AlignTask(task, data.queries, reward, config.collapse, training.blends)
        result = run_algorithm(config.algo, align_task, options, setup, config.probe_queries)
        if evaluator is not None:
            facts = {key: result.facts[key] for key in ("answers", "start", "kept", "collapse")}
            write_results(
                output,
                task,
                evaluator,
                result,
                config.algo.kind,
                {"algo": config.algo.kind, **facts},
                lambda fusion: card(result, fusion),
                context,
            )
    return close_run(output, training)


def _card(
    config: AlignConfig, start: StartPolicy, data: AlignData, result: TrainingResult, fusion: FusionScore | None
) -> RewriterCard:
    from pipelines.train.training_run import make_card

    sources = zip(data.sources, config.data, strict=True)
    algo, reward = asdict(config.algo), asdict(config.reward)
    return make_card(
        (start.base, start.base_fingerprint),
        config.training,
        config.evaluation.metric,
        data.sources,
        result,
        fusion,
        data=[source.summary() | {"aligned_on": settings.split} for source, settings in sources],
        training={"algo": algo, "reward": reward, **asdict(config.training), **result.facts},
        trained_by=f"{config.algo.kind} after {start.trained_by}",
    )


def _input_hashes(start: StartPolicy, data: AlignData, config: AlignConfig) -> dict[str, str]:
    """Hashes of the inputs, which must not change when the run is resumed."""
    examples = [query.example for query in data.queries] + [dev for source in data.sources for dev in source.dev]
    hashes = {
        "policy": fingerprint(start.adapter or start.model),
        "queries": hash_text(write_examples(examples) + data.template.dump()),
    }
    if isinstance(config.algo, DpoSettings) and config.algo.pairs:
        hashes["pairs"] = hash_text(write_pairs(read_pairs(Path(config.algo.pairs))))
    return hashes
