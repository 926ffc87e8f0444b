"""The rounds of a renewal: one folder each, gone on with until it has its verdict.

round-0001/
  config.yaml, environment.json
  live/           the live index as it was when the round began: what is compared with, and the way back
  collected/      the data set that was learned from; collected.json in it tells what was left out, and why
  candidate/      an index, or a rewriter's training run
  fixed/, eval-*/ the fixed sets over the catalogue of that day, and the evaluations on them
  report.html
  verdict.json    written last
"""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from pipelines import config as configs
from pipelines.renew.settings import COLLECTED, RenewConfig
from pipelines.runs import as_json, environment, write_files
from retrievers.errors import BadInput

VERDICT = "verdict.json"


def all_rounds(output: Path) -> list[Path]:
    """Oldest first."""
    return sorted(path for path in output.glob("round-[0-9]*") if path.is_dir())


def outcome(folder: Path) -> dict[str, Any] | None:
    """What a finished round came to; None: it is not finished."""
    path = folder / VERDICT
    if not path.is_file():
        return None
    facts: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return facts


def settle(folder: Path, facts: dict[str, Any]) -> None:
    """Notes what a round came to."""
    write_files(folder, {VERDICT: as_json(facts)})


def open_round(config: RenewConfig) -> Path:
    """The round that was begun and not finished, or a new one."""
    output = Path(config.output)
    rounds = all_rounds(output)
    if rounds and not (rounds[-1] / COLLECTED).exists():
        shutil.rmtree(rounds.pop())  # it came to nothing yet: a mistake in the config, or a kill early on
    if rounds and outcome(rounds[-1]) is None:
        begun = rounds[-1]
        if _same(configs.load(begun / "config.yaml", RenewConfig)) != _same(config):
            raise BadInput(
                f"the round in {begun} was begun with another config; go on with {begun / 'config.yaml'}, "
                "or remove that folder"
            )
        return begun
    number = int(rounds[-1].name.rpartition("-")[2]) + 1 if rounds else 1
    begun = output / f"round-{number:04d}"
    write_files(begun, {"environment.json": as_json(environment()), "config.yaml": configs.dump(config)})
    return begun


def passed_before(config: RenewConfig, ending: str) -> Path | None:
    """The last round, where it came to this end with the same config."""
    rounds = all_rounds(Path(config.output))
    facts = outcome(rounds[-1]) if rounds else None
    if facts is None or facts["outcome"] != ending:
        return None
    return rounds[-1] if _same(configs.load(rounds[-1] / "config.yaml", RenewConfig)) == _same(config) else None


def _same(config: RenewConfig) -> RenewConfig:
    """The config without what changes no result: whether to promote, and how long to wait."""
    return replace(config, promote=True, wait=0.0)


def before_last(folder: Path) -> dict[str, Any] | None:
    """What the round before this one came to, with what it collected."""
    earlier = [each for each in all_rounds(folder.parent) if each.name < folder.name]
    if not earlier:
        return None
    found = outcome(earlier[-1])
    if found is None:
        return None
    then, now = (configs.load(each / "config.yaml", RenewConfig) for each in (earlier[-1], folder))
    return {**found, "round": earlier[-1].name, "same_config": _same(then) == _same(now)}
