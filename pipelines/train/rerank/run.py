"""`rewrite-train rerank`: leave groups of catalogues out, choose depth and weight on them, train on all."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from pipelines import config as configs
from pipelines.evaluate.compare import compare
from pipelines.models import find_model
from pipelines.runs import as_json, environment, write_files
from pipelines.train.rerank.choice import choose_settings, score_settings
from pipelines.train.rerank.compact_form import write_compact_form
from pipelines.train.rerank.report import reranker_page
from pipelines.train.rerank.scored_lists import METRICS, ScoredLists, SetLists, read_lists, score_lists, write_lists
from pipelines.train.rerank.sets import TO_CHOOSE, TO_JUDGE, RerankSet, first_lists, load_sets
from pipelines.train.rerank.settings import RerankConfig
from pipelines.train.run_folder import alone
from retrievers.dense.encoder import fingerprint
from retrievers.errors import BadInput
from retrievers.files import disk_room
from retrievers.kind import Context
from retrievers.rerank.folder import RerankChoice, RerankerCard, write_card
from retrievers.rerank.settings import LanguageModelSettings

SCORED = "lists.npz"
Figures = dict[str, dict[str, Any]]
"""The retriever in words, then the set -> sizes, metrics of both orders, significance."""


def leave_out(config: RerankConfig, group: str, context: Context) -> Path:
    """Train without one group and score its lists; return the run's folder. A finished one is kept."""
    from pipelines.train.rerank.training import tune_reranker

    folder = Path(config.output) / f"without-{group}"
    with alone(folder), disk_room(folder):
        sources = [source for name, own in config.groups.items() if name != group for source in own]
        sets, left_out = load_sets(sources, config, True), load_sets(config.groups[group], config, False)
        begin(folder, replace(config, leave_out=group, judged=()))
        model = tune_reranker(sets, config, folder, context)
        if not (folder / "metrics.json").exists():
            scored = score_sets(model, left_out, TO_JUDGE, config, context)
            write_lists(folder / SCORED, scored)
            facts = {"group": group, "best_per_set": figures_of(scored, None, config)}
            write_files(folder, {"metrics.json": as_json(facts)})
    return folder


def begin(folder: Path, config: RerankConfig) -> None:
    """Write config and environment; figures of another config are deleted, and weights of another one not reused."""
    stored = folder / "config.yaml"
    if stored.exists() and stored.read_text(encoding="utf-8") != configs.dump(config):
        (folder / "metrics.json").unlink(missing_ok=True)
    write_files(folder, {"config.yaml": configs.dump(config), "environment.json": as_json(environment())})


def score_sets(
    model: Any, sets: Sequence[RerankSet], use: str, config: RerankConfig, context: Context
) -> dict[str, SetLists]:
    """Lists of every set with the model's scores; sets without such queries are left out."""
    return {
        data.name: score_lists(model, data, use, first_lists(data, use, config, context), config.tops, context)
        for data in sets
        if len(data.examples[use])
    }


def left_out_lists(config: RerankConfig) -> dict[str, SetLists]:
    """Scored lists of all left-out sets; empty where a group has not been left out yet."""
    sets: dict[str, SetLists] = {}
    for group in config.groups if len(config.groups) > 1 else ():
        folder = Path(config.output) / f"without-{group}"
        if not (folder / "metrics.json").exists():
            return {}
        sets |= read_lists(folder / SCORED)
    return sets


def by_retriever(sets: Mapping[str, SetLists]) -> dict[str, dict[str, ScoredLists]]:
    """The retriever in words -> set -> lists."""
    words = dict.fromkeys(words for lists in sets.values() for words in lists)
    return {own: {name: lists[own] for name, lists in sets.items() if own in lists} for own in words}


def figures_of(sets: Mapping[str, SetLists], choices: Sequence[RerankChoice] | None, config: RerankConfig) -> Figures:
    """Both orders of every set under the choices; without them, each set under what its sisters choose."""
    figures: Figures = {}
    for words, lists in by_retriever(sets).items():
        values: dict[str, dict[str, Any]] = {}
        rows: dict[str, dict[str, Any]] = {}
        for name, own in lists.items():
            choice = next((one for one in choices or () if one.retriever == words), None)
            others = {other: theirs for other, theirs in lists.items() if other != name}
            if choice is not None:
                top, weight = choice.top, choice.weight
            else:
                chosen = score_settings(others or lists, config.weights, config.tops, config.max_loss)[0]
                top, weight = chosen.top, chosen.weight
            values[f"{name} first"], values[name] = own.measure(top, 0.0), own.measure(top, weight)
            rows[name] = {"queries": len(own), "top": top, "weight": weight, "ms_per_query": _milliseconds(own)}
        for name, row in rows.items():
            # Corrected over the sets of one metric afterwards: sets differ in length, so each is tested alone.
            tests = compare(values, {name: f"{name} first"}, METRICS, config.seed)
            row["metrics"] = {
                test.metric: {
                    "first": round(float(values[f"{name} first"][test.metric].mean()), 6),
                    "reranked": round(float(values[name][test.metric].mean()), 6),
                    "p_value": test.p_value,
                }
                for test in tests
            }
        figures[words] = rows
    return add_holm(figures)


def add_holm(figures: Figures) -> Figures:
    """Correct the p-values of each metric over the sets."""
    from pipelines.evaluate.significance import holm

    for rows in figures.values():
        for metric in METRICS:
            cells = [row["metrics"][metric] for row in rows.values()]
            for cell, corrected in zip(cells, holm([cell["p_value"] for cell in cells]), strict=True):
                cell["p_holm"] = corrected
    return figures


def _milliseconds(lists: ScoredLists) -> float | None:
    seconds = float(lists.seconds)
    return None if math.isnan(seconds) else round(1000 * seconds / max(1, len(lists)), 3)


def final(config: RerankConfig, context: Context) -> dict[str, Any]:
    """Train on all groups, choose, write the reranker, and evaluate it on the judged sets; return the metrics."""
    from pipelines.train.rerank.training import TUNED, load_trained, tune_reranker

    folder = Path(config.output) / "final"
    with alone(folder), disk_room(folder):
        sets = load_sets([source for own in config.groups.values() for source in own], config, True)
        judged = load_sets(config.judged, config, False)
        begin(folder, config)
        model = tune_reranker(sets, config, folder, context)
        if (folder / "metrics.json").exists():
            stored: dict[str, Any] = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))
            return stored
        left_out = left_out_lists(config)
        lists = left_out or score_sets(model, sets, TO_CHOOSE, config, context)
        if not lists:
            raise BadInput("there are no dev queries to choose depth and weight on; leave groups out, or label some")
        made = {
            words: choose_settings(words, own, config.weights, config.tops, config.max_loss)
            for words, own in by_retriever(lists).items()
        }
        choices = tuple(choice for choice, _ in made.values())
        scored = score_sets(model, judged, TO_JUDGE, config, context)
        write_lists(folder / SCORED, scored)
        metrics: dict[str, Any] = {
            "chosen_on": "left-out sets" if left_out else "dev",
            "choices": [asdict(choice) | facts for choice, facts in made.values()],
            "chosen": figures_of(lists, None if left_out else choices, config),
            "judged": figures_of(scored, choices, config),
        }
        target = Path(config.output) / "reranker"
        write_reranker(folder / TUNED, target, make_card(config, sets, choices, metrics))
        metrics["bytes"] = sum(path.stat().st_size for path in target.iterdir())

        def judge(whole: Path) -> Figures:
            small = load_trained(find_model(config.model.base), whole, config, context.device)
            return figures_of(score_sets(small, judged, TO_JUDGE, config, context), choices, config)

        metrics["compact"] = write_compact_form(config, target, judge)
        page = reranker_page(Path(config.output), metrics)
        write_files(folder, {"metrics.json": as_json(metrics), "report.html": page})
    return metrics


def make_card(
    config: RerankConfig, sets: Sequence[RerankSet], choices: tuple[RerankChoice, ...], metrics: dict[str, Any]
) -> RerankerCard:
    """The reranker's card."""
    model = config.model
    return RerankerCard(
        model.kind,
        model.base,
        fingerprint(find_model(model.base)),
        model.method if isinstance(model, LanguageModelSettings) else "full",
        model.max_length,
        model.max_tool,
        choices,
        [{"name": one.name, "licence": one.source.licence, "queries": len(one.examples["train"])} for one in sets],
        {"chosen_on": metrics["chosen_on"], "judged": metrics["judged"]},
        asdict(config.training) | {"seed": config.seed},
        environment(),
    )


def write_reranker(tuned: Path, target: Path, card: RerankerCard) -> None:
    """Copy the weights and write the card, whole or not at all."""
    part = target.with_name(f"{target.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    shutil.copytree(tuned, part)
    write_card(part, card)
    shutil.rmtree(target, ignore_errors=True)
    part.rename(target)


def describe(config: RerankConfig) -> Iterator[str]:
    """Lines about the work that a config asks for: sets, queries, shares of the steps, pairs to read."""
    from retrievers.dense.tuning.mixture import set_shares

    named = [(group, source) for group, own in config.groups.items() for source in own]
    sets = load_sets([source for _, source in named], config, to_train=True)
    shares = set_shares([len(data.examples["train"]) for data in sets], config.training.mixture)
    for (group, _), data, share in zip(named, sets, shares, strict=True):
        counts = f"{len(data.tools):,} tools, {len(data.examples['train']):,} queries"
        yield f"{group}: {data.name}, {counts}, {share:.1%} of the lists"
    training = config.training
    pairs = training.steps * training.queries * training.candidates
    queries = sum(len(data.examples[TO_JUDGE]) for data in sets)
    yield (
        f"{training.steps:,} steps and {pairs:,} pairs per training; {len(config.groups)} trainings with "
        f"--leave-one-out, which then read {queries * max(config.tops) * len(config.fronts):,} pairs; 1 without"
    )
