"""From a task to a trained policy, for every algorithm: what is drawn before, probed, and done in rounds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from pipelines.runs import as_json, write_files
from pipelines.train.align_data import StartSettings
from pipelines.train.sampling import drawn
from retrievers.errors import BadInput
from retrievers.kind import Context
from rewrite.align.alignment_trainer import AlignTask, RunOptions
from rewrite.align.best_of_n import best_examples, train_best_of_n
from rewrite.align.pairs import PAIRS_FILE, Pair, make_pairs, read_pairs, write_pairs
from rewrite.align.probe import probe
from rewrite.align.query import unique_queries
from rewrite.align.samples import ScoredSample
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
from rewrite.sft.run import TrainingResult

ANY = PairSettings(margin=1e-9)
"""For algorithms without pairs: any spread will do."""


@dataclass(frozen=True, slots=True)
class Work:
    """Who answers before training, and how a round's rewriter is described."""

    start: StartSettings
    backend: BackendSettings
    context: Context
    card: Callable[[TrainingResult], RewriterCard]


def run_algorithm(algo: AlgoSettings, task: AlignTask, options: RunOptions, work: Work, check: int) -> TrainingResult:
    """Trains by the algorithm that was asked for; stops before that where the probe says that it would be in vain."""
    if isinstance(algo, DpoSettings):
        return _dpo(algo, task, options, work)
    if isinstance(algo, BestOfNSettings):
        samples = _samples(task, options.folder, work, algo.samples, ANY)
        return train_best_of_n(task, options, best_examples(samples, task.training.template, algo))
    answers = algo.answers if not isinstance(algo, PpoSettings) else 4
    settings = SampleSettings(answers, algo.temperature, max_tokens=algo.max_tokens, seed=options.settings.seed)
    few = replace(task, queries=unique_queries(task.queries)[:check])
    _samples(few, options.folder, work, settings, ANY)
    if isinstance(algo, PpoSettings):
        from rewrite.align.ppo.run import train_ppo

        return train_ppo(task, options, algo)
    from rewrite.align.groups.run import train_groups

    return train_groups(task, options, algo)


def _samples(
    task: AlignTask, folder: Path, work: Work, settings: SampleSettings, pairing: PairSettings
) -> list[ScoredSample]:
    """Scored answers; where they promise nothing the run ends here, with the probe's verdict."""
    reward: Any = task.reward
    queries = unique_queries(task.queries)
    samples = drawn(folder / "samples", work.start, work.backend, queries, reward, settings, work.context)
    found = probe(samples, pairing)
    if is_main_process():
        write_files(folder, {"probe.json": as_json(asdict(found))})
    if found.hopeless:
        raise BadInput(found.verdict)
    log_line(f"worth it? {found.verdict}")
    return samples


def _dpo(algo: DpoSettings, task: AlignTask, options: RunOptions, work: Work) -> TrainingResult:
    """Rounds of sampling, pairing and training; each starts where the one before ended, with queries of its own: those
    that were learned from tell least of what is left to learn."""
    from rewrite.align.dpo import train_dpo

    if len(task.queries) < algo.rounds > 1:
        raise BadInput(f"{len(task.queries)} queries are too few for {algo.rounds} rounds, each with its own")
    beginning: RewriterTask = task.training
    for number in range(1, algo.rounds + 1):
        here = replace(options, folder=options.folder / f"round-{number}") if algo.rounds > 1 else options
        finished = here.folder / "rewriter"
        if number < algo.rounds and (finished / CARD_FILE).is_file():
            task, work = _next(task, work, finished)
            continue
        if algo.rounds > 1:
            log_line(f"round {number} of {algo.rounds}")
        share = task.queries[number - 1 :: algo.rounds]
        pairs = _pairs(algo, replace(task, queries=share), here.folder, work)
        moved = algo.reference == "frozen" and task.training is not beginning
        trained = train_dpo(task, here, pairs, algo, beginning if moved else None)
        if number == algo.rounds or trained.facts["kept"] == "start":
            return _of_all_rounds(trained, number, options.folder, task.training.metric)
        if is_main_process():
            save_rewriter(finished, trained.model, trained.tokenizer, work.card(trained), task.training.template)
        wait_for_all()
        task, work = _next(task, work, finished)
    raise AssertionError("the last round returns")


def _of_all_rounds(trained: TrainingResult, number: int, work: Path, metric: str) -> TrainingResult:
    """The last round's policy, with what is true of all rounds: where they started, and what was kept."""
    if number == 1:
        return trained
    kept = f"round {number - 1}" if trained.facts["kept"] == "start" else "best"
    facts = {"start": read_start_metrics(work / "round-1", metric), "kept": kept, "rounds": number}
    return replace(trained, facts=trained.facts | facts)


def _pairs(algo: DpoSettings, task: AlignTask, folder: Path, work: Work) -> list[Pair]:
    if algo.pairs:
        return read_pairs(Path(algo.pairs))
    samples = _samples(task, folder, work, algo.samples, algo.pairing)
    pairs = make_pairs(samples, algo.pairing)
    if is_main_process():
        write_files(folder, {PAIRS_FILE: write_pairs(pairs)})
    return pairs


def _next(task: AlignTask, work: Work, folder: Path) -> tuple[AlignTask, Work]:
    """The task of the round that starts from a finished one."""
    adapter = open_rewriter(folder).adapter
    training = replace(task.training, adapter=adapter) if adapter else replace(task.training, base=folder)
    return replace(task, training=training), replace(work, start=StartSettings(path=str(folder), base=work.start.base))
