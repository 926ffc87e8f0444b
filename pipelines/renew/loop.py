"""One round: collect, retrain, compare, promote. Every stage is complete on disk before the next begins."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelines.data.dataset_writer import write_dataset
from pipelines.renew.collect import CollectedData, check_enough, collect
from pipelines.renew.fixed_sets import LoadedSet, fixed_utterances, load_fixed_sets
from pipelines.renew.promote import promote, restore_previous, snapshot
from pipelines.renew.report import round_page
from pipelines.renew.retrain import retrain, trains_on_collected
from pipelines.renew.rounds import (
    LIVE,
    last_round_with,
    list_rounds,
    open_round,
    read_outcome,
    repeats_last_round,
    write_outcome,
)
from pipelines.renew.settings import COLLECTED, RenewConfig, RetrainIndex
from pipelines.renew.verdict import Verdict, compare_on_fixed_sets, verdict_from_json
from pipelines.runs import as_json, write_files
from retrievers.errors import BadInput
from retrievers.files import writer_lock
from retrievers.index import Index
from retrievers.kind import Context

FACTS = "collected.json"
PROMOTED, KEPT, BETTER, ROLLED_BACK = "promoted", "live kept", "better, not promoted", "rolled back"


@dataclass(frozen=True, slots=True)
class RenewResult:
    """Result of one call."""

    folder: Path | None
    """The round; None: none was made."""
    collected: dict[str, Any]
    verdict: Verdict | None
    outcome: str


def preview(config: RenewConfig, context: Context) -> CollectedData:
    """Training data of a round that would begin now. Writes nothing."""
    live = Index(Path(config.live.index), context)
    return collect(
        config.sources, live.tools, fixed_utterances(load_fixed_sets(config.fixed_sets, live.tools, config.seed))
    )


def renew(config: RenewConfig, context: Context) -> RenewResult:
    """Resume the unfinished round, or make the next one."""
    if isinstance(config.retrain, RetrainIndex) and not trains_on_collected(config.retrain.retrievers.values()):
        raise BadInput("no retriever trains on the collected data: set `train: {data: [{path: collected}]}`", "retrain")
    with writer_lock(
        Path(config.output), 0.0
    ):  # of two rounds at once, each would replace what the other compares with
        waiting = last_round_with(config, BETTER)
        if waiting is not None and config.promote:
            promote(config, waiting, context)
            collected = _close(waiting, read_outcome(waiting) or {}, PROMOTED)
            return RenewResult(None, collected, None, f"{waiting.name} was better before, and is promoted now")
        folder = open_round(config)
        snapshot(Path(config.live.index), folder / LIVE)
        live = Index(folder / LIVE, context)
        fixed = load_fixed_sets(config.fixed_sets, live.tools, config.seed)
        facts, reason = _collect(config, folder, live, fixed)
        if reason:
            shutil.rmtree(folder)
            return RenewResult(None, facts, None, reason)
        retrain(config, folder, live, context)
        verdict = compare_on_fixed_sets(config, folder, fixed, live, context)
        outcome = KEPT if not verdict.passed else PROMOTED if config.promote else BETTER
        if outcome == PROMOTED:
            promote(config, folder, context)
        _close(folder, {"digest": facts["digest"], **verdict.to_json()}, outcome)
        return RenewResult(folder, facts, verdict, outcome)


def _close(folder: Path, facts: dict[str, Any], outcome: str) -> dict[str, Any]:
    """Write report and outcome; return the content of collected.json."""
    collected: dict[str, Any] = json.loads((folder / COLLECTED / FACTS).read_text(encoding="utf-8"))
    write_files(folder, {"report.html": round_page(folder, verdict_from_json(facts), collected, outcome)})
    write_outcome(folder, facts | {"outcome": outcome})
    return collected


def _collect(config: RenewConfig, folder: Path, live: Index, fixed: list[LoadedSet]) -> tuple[dict[str, Any], str]:
    """Content of collected.json, and the reason not to make the round, if there is one."""
    target = folder / COLLECTED
    if (target / FACTS).is_file():
        facts: dict[str, Any] = json.loads((target / FACTS).read_text(encoding="utf-8"))
        return facts, ""
    data = collect(config.sources, live.tools, fixed_utterances(fixed))
    facts = data.to_json() | {"fixed_queries_gone": {loaded.name: loaded.num_removed for loaded in fixed}}
    needed = config.sources.min_utterances
    if data.fresh < needed:
        return facts, f"{data.fresh} utterances of the {needed} that a round needs (`sources.min_utterances`)"
    if last := repeats_last_round(folder, config, facts["digest"]):
        return facts, f"there is no new feedback since {last}"
    check_enough(data)
    queries = [data.queries[query] for query in sorted(data.queries)]
    write_dataset(target, live.tools.values(), queries, data.gold, {FACTS: as_json(facts)})
    return facts, ""


def roll_back(config: RenewConfig, context: Context) -> Path:
    """Undo the last promotion; return its round."""
    output = Path(config.output)
    with writer_lock(output, 0.0):
        for folder in reversed(list_rounds(output)):
            facts = read_outcome(folder)
            if facts is not None and facts["outcome"] == PROMOTED:
                restore_previous(config, folder, context)
                _close(folder, facts, ROLLED_BACK)
                return folder
    raise BadInput(f"no round in {output} was promoted; there is nothing to roll back")
