"""From a goal to a trained policy, for every algorithm: what is drawn before, probed, and done in rounds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from pipelines.runs import as_json, write_files
from pipelines.train.align_data import StartSettings
from pipelines.train.sampling import completions, drawn
from retrievers.errors import BadInput
from retrievers.kind import Context
from rewrite.align.alignment_trainer import Goal, Leg
from rewrite.align.best_of_n import best_examples, train_best_of_n
from rewrite.align.pairs import FILE, Pair, make_pairs, read_pairs, write_pairs
from rewrite.align.probe import probe
from rewrite.align.query import unique
from rewrite.align.samples import Sample
from rewrite.align.settings import (
    AlgoSettings,
    BestOfNSettings,
    DpoSettings,
    PairSettings,
    PpoSettings,
    SampleSettings,
)
from rewrite.folder import CARD, Card, open_folder, save_folder
from rewrite.settings import BackendSettings
from rewrite.sft.callbacks import say
from rewrite.sft.dev_eval_trainer import Task, start_figures
from rewrite.sft.distributed import first, wait
from rewrite.sft.run import Trained

ANY = PairSettings(margin=1e-9)
"""For algorithms without pairs: any spread will do."""


@dataclass(frozen=True, slots=True)
class Work:
    """Who answers before training, and how a round's rewriter is described."""

    start: StartSettings
    backend: BackendSettings
    context: Context
    card: Callable[[Trained], Card]


def run_algorithm(algo: AlgoSettings, goal: Goal, leg: Leg, work: Work, check: int) -> Trained:
    """Trains by the algorithm that was asked for; stops before that where the probe says that it would be in vain."""
    if isinstance(algo, DpoSettings):
        return _dpo(algo, goal, leg, work)
    if isinstance(algo, BestOfNSettings):
        samples, _ = _samples(goal, leg.work, work, algo.samples, replace(ANY, joined=1) if algo.vote else ANY)
        return train_best_of_n(goal, leg, best_examples(samples, goal.task.template, algo))
    answers = algo.answers if not isinstance(algo, PpoSettings) else 4
    settings = SampleSettings(answers, algo.temperature, most_tokens=algo.most_tokens, seed=leg.settings.seed)
    few = replace(goal, queries=unique(goal.queries)[:check])
    _samples(few, leg.work, work, settings, ANY)
    if isinstance(algo, PpoSettings):
        from rewrite.align.ppo.run import train_ppo

        return train_ppo(goal, leg, algo)
    from rewrite.align.groups.run import train_groups

    return train_groups(goal, leg, algo)


def _samples(
    goal: Goal, folder: Path, work: Work, settings: SampleSettings, pairing: PairSettings
) -> tuple[list[Sample], list[Pair]]:
    """Scored answers, and the pairs that are made of all of them together; where they promise nothing the run ends
    here, with the probe's verdict."""
    reward: Any = goal.reward
    queries = unique(goal.queries)
    samples = drawn(folder / "samples", work.start, work.backend, queries, reward, settings, work.context)
    more = completions(folder, samples, queries, reward, goal.task.template, pairing, resume=True)
    found = probe(samples, pairing, len(more))
    if first():
        write_files(folder, {"probe.json": as_json(asdict(found))})
    if found.hopeless:
        raise BadInput(found.verdict)
    say(f"worth it? {found.verdict}")
    return samples, more


def _dpo(algo: DpoSettings, goal: Goal, leg: Leg, work: Work) -> Trained:
    """Rounds of sampling, pairing and training; each starts where the one before ended, with queries of its own: those
    that were learned from tell least of what is left to learn."""
    from rewrite.align.dpo import train_dpo

    if len(goal.queries) < algo.rounds > 1:
        raise BadInput(f"{len(goal.queries)} queries are too few for {algo.rounds} rounds, each with its own")
    beginning: Task = goal.task
    for number in range(1, algo.rounds + 1):
        here = replace(leg, work=leg.work / f"round-{number}") if algo.rounds > 1 else leg
        finished = here.work / "rewriter"
        if number < algo.rounds and (finished / CARD).is_file():
            goal, work = _next(goal, work, finished)
            continue
        if algo.rounds > 1:
            say(f"round {number} of {algo.rounds}")
        share = goal.queries[number - 1 :: algo.rounds]
        pairs = _pairs(algo, replace(goal, queries=share), here.work, work)
        moved = algo.reference == "frozen" and goal.task is not beginning
        trained = train_dpo(goal, here, pairs, algo, beginning if moved else None)
        if number == algo.rounds or trained.facts["kept"] == "start":
            return _of_all_rounds(trained, number, leg.work, goal.task.metric)
        if first():
            save_folder(finished, trained.model, trained.tokenizer, work.card(trained), goal.task.template)
        wait()
        goal, work = _next(goal, work, finished)
    raise AssertionError("the last round returns")


def _of_all_rounds(trained: Trained, number: int, work: Path, metric: str) -> Trained:
    """The last round's policy, with what is true of all rounds: where they started, and what was kept."""
    if number == 1:
        return trained
    kept = f"round {number - 1}" if trained.facts["kept"] == "start" else "best"
    facts = {"start": start_figures(work / "round-1", metric), "kept": kept, "rounds": number}
    return replace(trained, facts=trained.facts | facts)


def _pairs(algo: DpoSettings, goal: Goal, folder: Path, work: Work) -> list[Pair]:
    if algo.pairs:
        return read_pairs(Path(algo.pairs))
    samples, more = _samples(goal, folder, work, algo.samples, algo.pairing)
    pairs = make_pairs(samples, algo.pairing) + more
    if first():
        write_files(folder, {FILE: write_pairs(pairs)})
    return pairs


def _next(goal: Goal, work: Work, folder: Path) -> tuple[Goal, Work]:
    """The goal of the round that starts from a finished one."""
    adapter = open_folder(folder).adapter
    task = replace(goal.task, adapter=adapter) if adapter else replace(goal.task, base=folder)
    return replace(goal, task=task), replace(work, start=StartSettings(path=str(folder), base=work.start.base))
