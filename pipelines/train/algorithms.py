"""Run an alignment algorithm: sample and probe before training, DPO in rounds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from pipelines.runs import as_json, write_files
from pipelines.train.policy import StartSettings
from pipelines.train.sampling import sample_answers
from retrievers.errors import BadInput
from retrievers.kind import Context
from rewrite.align.alignment_trainer import AlignTask
from rewrite.align.best_of_n import best_examples, train_best_of_n
from rewrite.align.pairs import PAIRS_FILE, Pair, make_pairs, read_pairs, write_pairs
from rewrite.align.probe import probe
from rewrite.align.samples import ScoredSample, count_answers, read_samples, unique_queries
from rewrite.align.settings import (
    AlgoSettings,
    BestOfNSettings,
    DpoSettings,
    PairSettings,
    PpoSettings,
    SampleSettings,
)
from rewrite.folder import CARD_FILE, RewriterCard, open_rewriter, save_rewriter
from rewrite.settings import BackendSettings
from rewrite.sft.callbacks import log_line
from rewrite.sft.dev_eval_trainer import RewriterTask
from rewrite.sft.distributed import is_main_process, wait_for_all
from rewrite.sft.metrics_log import read_start_metrics
from rewrite.sft.run import RunOptions, TrainingResult


@dataclass(frozen=True, slots=True)
class SamplingSetup:
    """The policy that answers before training, its backend, and the card of a round's rewriter."""

    start: StartSettings
    backend: BackendSettings
    context: Context
    card: Callable[[TrainingResult], RewriterCard]


def run_algorithm(
    algo: AlgoSettings, task: AlignTask, options: RunOptions, setup: SamplingSetup, probe_queries: int
) -> TrainingResult:
    """Train by the algorithm of the settings; refuse if the probe shows that nothing can be gained."""
    if isinstance(algo, DpoSettings):
        result = _train_dpo(algo, task, options, setup)
        return replace(result, facts=result.facts | {"answers": _count_answers(algo, options.folder)})
    if isinstance(algo, BestOfNSettings):
        samples = _sample(task, options.folder, setup, algo.samples)
        result = train_best_of_n(task, options, best_examples(samples, task.training.template, algo))
        return replace(result, facts=result.facts | {"answers": count_answers(samples)})
    answers = algo.answers if not isinstance(algo, PpoSettings) else 4
    settings = SampleSettings(answers, algo.temperature, max_tokens=algo.max_tokens, seed=options.settings.seed)
    probed = replace(task, queries=unique_queries(task.queries)[:probe_queries])
    _sample(probed, options.folder, setup, settings)
    if isinstance(algo, PpoSettings):
        from rewrite.align.ppo.run import train_ppo

        return train_ppo(task, options, algo)
    from rewrite.align.groups.run import train_groups

    return train_groups(task, options, algo)


def _sample(
    task: AlignTask, folder: Path, setup: SamplingSetup, settings: SampleSettings, pairing: PairSettings | None = None
) -> list[ScoredSample]:
    """Scored answers; if they promise no gain, the run ends here with the probe's verdict."""
    reward: Any = task.reward
    queries = unique_queries(task.queries)
    samples = sample_answers(folder / "samples", setup.start, setup.backend, queries, reward, settings, setup.context)
    result = probe(samples, pairing)
    if is_main_process():
        write_files(folder, {"probe.json": as_json(asdict(result))})
    if result.hopeless:
        raise BadInput(result.verdict)
    log_line(f"worth it? {result.verdict}")
    return samples


def _train_dpo(algo: DpoSettings, task: AlignTask, options: RunOptions, setup: SamplingSetup) -> TrainingResult:
    """Rounds of sampling, pairing and training, each from the result of the one before and with queries of its own."""
    from rewrite.align.dpo import train_dpo

    if len(task.queries) < algo.rounds > 1:
        raise BadInput(f"{len(task.queries)} queries are too few for algo.rounds {algo.rounds}, each with its own")
    first_task: RewriterTask = task.training
    for number in range(1, algo.rounds + 1):
        round_options = replace(options, folder=options.folder / f"round-{number}") if algo.rounds > 1 else options
        finished = round_options.folder / "rewriter"
        if number < algo.rounds and (finished / CARD_FILE).is_file():
            task, setup = _next_round(task, setup, finished)
            continue
        if algo.rounds > 1:
            log_line(f"round {number} of {algo.rounds}")
        share = task.queries[number - 1 :: algo.rounds]
        pairs = _make_pairs(algo, replace(task, queries=share), round_options.folder, setup)
        moved = algo.reference == "frozen" and task.training is not first_task
        trained = train_dpo(task, round_options, pairs, algo, first_task if moved else None)
        if number == algo.rounds or trained.facts["kept"] == "start":
            return _with_round_facts(trained, number, options.folder, task.training.metric)
        if is_main_process():
            save_rewriter(finished, trained.model, trained.tokenizer, setup.card(trained), task.training.template)
        wait_for_all()
        task, setup = _next_round(task, setup, finished)
    raise AssertionError("the last round returns")


def _with_round_facts(trained: TrainingResult, number: int, folder: Path, metric: str) -> TrainingResult:
    """The last round's result with the facts of all rounds: their start, and which one was kept."""
    if number == 1:
        return trained
    kept = f"round {number - 1}" if trained.facts["kept"] == "start" else "best"
    facts = {"start": read_start_metrics(folder / "round-1", metric), "kept": kept, "rounds": number}
    return replace(trained, facts=trained.facts | facts)


def _make_pairs(algo: DpoSettings, task: AlignTask, folder: Path, setup: SamplingSetup) -> list[Pair]:
    if algo.pairs:
        return read_pairs(Path(algo.pairs))
    samples = _sample(task, folder, setup, algo.samples, algo.pairing)
    pairs = make_pairs(samples, algo.pairing)
    if is_main_process():
        write_files(folder, {PAIRS_FILE: write_pairs(pairs)})
    return pairs


def _count_answers(algo: DpoSettings, folder: Path) -> int | None:
    """Number of answers behind the pairs of all rounds; None for pairs from a file without its samples."""
    folders = [Path(algo.pairs)] if algo.pairs else folder.glob("**/samples")
    return sum(count_answers(read_samples(samples)) for samples in folders) or None


def _next_round(task: AlignTask, setup: SamplingSetup, folder: Path) -> tuple[AlignTask, SamplingSetup]:
    """Task and setup of the round after a finished one."""
    adapter = open_rewriter(folder).adapter
    training = replace(task.training, adapter=adapter) if adapter else replace(task.training, base=folder)
    return replace(task, training=training), replace(
        setup, start=StartSettings(path=str(folder), base=setup.start.base)
    )
