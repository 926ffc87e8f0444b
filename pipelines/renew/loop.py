"""One round: collect, retrain, compare, promote. Every stage is whole on the disk before the next begins."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelines.data.dataset_writer import write_dataset
from pipelines.renew.collect import Collected, check_enough, collect
from pipelines.renew.fixed_sets import Fixed, load_fixed, said_in
from pipelines.renew.promote import LIVE, promote, snapshot, take_back
from pipelines.renew.report import round_page
from pipelines.renew.retrain import learns_from, retrain
from pipelines.renew.rounds import all_rounds, before_last, open_round, outcome, passed_before, settle
from pipelines.renew.settings import COLLECTED, RenewConfig, RetrainIndex
from pipelines.renew.verdict import Verdict, judge, read_verdict
from pipelines.runs import as_json, write_files
from retrievers.errors import BadInput
from retrievers.files import writer_lock
from retrievers.index import Index
from retrievers.kind import Context

FACTS = "collected.json"
PROMOTED, KEPT, BETTER, BACK = "promoted", "live kept", "better, not promoted", "taken back"


@dataclass(frozen=True, slots=True)
class Told:
    """What came of a call."""

    folder: Path | None
    """The round; None: there was none to make."""
    collected: dict[str, Any]
    verdict: Verdict | None
    outcome: str


def look(config: RenewConfig, context: Context) -> Collected:
    """What a round that began now would learn from. Writes nothing."""
    live = Index(Path(config.live.index), context)
    return collect(config.sources, live.tools, said_in(load_fixed(config.judged, live.tools, config.seed)))


def renew(config: RenewConfig, context: Context) -> Told:
    """Goes on with the round that was begun, or makes the next one."""
    if isinstance(config.retrain, RetrainIndex) and not learns_from(config.retrain.retrievers.values()):
        raise BadInput("no retriever learns from what is collected: say `train: {data: [{path: collected}]}`")
    output = Path(config.output)
    with writer_lock(output, 0.0):  # two rounds at once would each be compared with what the other replaces
        waiting = passed_before(config, BETTER)
        if waiting is not None and config.promote:
            promote(config, waiting, context)
            told = f"{waiting.name} was found better before, and is promoted now"
            return Told(None, _close(waiting, outcome(waiting) or {}, PROMOTED), None, told)
        folder = open_round(config)
        snapshot(Path(config.live.index), folder / LIVE, config.wait)
        live = Index(folder / LIVE, context)
        fixed = load_fixed(config.judged, live.tools, config.seed)
        facts, reason = _collected(config, folder, live, fixed)
        if reason:
            shutil.rmtree(folder)
            return Told(None, facts, None, reason)
        retrain(config, folder, live, context)
        verdict = judge(config, folder, fixed, live, context)
        ending = KEPT if not verdict.passed else PROMOTED if config.promote else BETTER
        if ending == PROMOTED:
            promote(config, folder, context)
        _close(folder, {"digest": facts["digest"], **verdict.facts()}, ending)
        return Told(folder, facts, verdict, ending)


def _close(folder: Path, facts: dict[str, Any], ending: str) -> dict[str, Any]:
    """Writes the report and notes what the round came to; gives what it had collected."""
    collected: dict[str, Any] = json.loads((folder / COLLECTED / FACTS).read_text(encoding="utf-8"))
    write_files(folder, {"report.html": round_page(folder, read_verdict(facts), collected, ending)})
    settle(folder, facts | {"outcome": ending})
    return collected


def _collected(config: RenewConfig, folder: Path, live: Index, fixed: list[Fixed]) -> tuple[dict[str, Any], str]:
    """What the round learns from, and why it is not made where that is not worth it."""
    target = folder / COLLECTED
    if (target / FACTS).is_file():
        facts: dict[str, Any] = json.loads((target / FACTS).read_text(encoding="utf-8"))
        return facts, ""
    found = collect(config.sources, live.tools, said_in(fixed))
    facts = found.facts() | {"fixed_queries_gone": {each.name: each.gone for each in fixed}}
    if found.fresh < config.sources.least:
        least = config.sources.least
        return facts, f"{found.fresh} utterances of the {least} that a round wants at least (`sources.least`)"
    last = before_last(folder)
    if last is not None and last["same_config"] and last["digest"] == facts["digest"]:
        return facts, f"nothing new was said since {last['round']} ({last['outcome']})"
    check_enough(found)
    queries = [found.queries[query] for query in sorted(found.queries)]
    write_dataset(target, live.tools.values(), queries, found.gold, {FACTS: as_json(facts)})
    return facts, ""


def back(config: RenewConfig, context: Context) -> Path:
    """Takes the last promotion back, and gives its round."""
    output = Path(config.output)
    with writer_lock(output, 0.0):
        for folder in reversed(all_rounds(output)):
            facts = outcome(folder)
            if facts is not None and facts["outcome"] == PROMOTED:
                take_back(config, folder, context)
                _close(folder, facts, BACK)
                return folder
    raise BadInput(f"no round in {output} was promoted; there is nothing to take back")
