"""Rounds of a renewal: one folder each, resumed until it has a verdict.

round-0001/
  config.yaml, environment.json
  live/           the live index when the round began: for the comparison, and for a rollback
  collected/      the collected data set; collected.json counts what was left out, by reason
  candidate/      an index, or a rewriter's training run
  fixed/, eval-*/ the fixed sets over that day's catalogue, and the evaluations on them
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

LIVE = "live"
CANDIDATE = "candidate"
VERDICT = "verdict.json"
CONFIG = "config.yaml"


def list_rounds(output: Path) -> list[Path]:
    """Folders of all rounds, oldest first."""
    return sorted(path for path in output.glob("round-[0-9]*") if path.is_dir())


def read_outcome(folder: Path) -> dict[str, Any] | None:
    """Content of verdict.json; None: the round is not finished."""
    path = folder / VERDICT
    if not path.is_file():
        return None
    facts: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return facts


def write_outcome(folder: Path, facts: dict[str, Any]) -> None:
    """Finish a round."""
    write_files(folder, {VERDICT: as_json(facts)})


def open_round(config: RenewConfig) -> Path:
    """The unfinished round, or a new one."""
    output = Path(config.output)
    rounds = list_rounds(output)
    if rounds and not (rounds[-1] / COLLECTED).exists():
        shutil.rmtree(rounds.pop())  # nothing was collected yet: a mistake in the config, or an early kill
    if rounds and read_outcome(rounds[-1]) is None:
        folder = rounds[-1]
        if not _has_config(folder, config):
            raise BadInput(
                f"the round in {folder} was started with another config; resume it with {folder / CONFIG}, "
                "or remove that folder"
            )
        return folder
    number = int(rounds[-1].name.rpartition("-")[2]) + 1 if rounds else 1
    folder = output / f"round-{number:04d}"
    write_files(folder, {"environment.json": as_json(environment()), CONFIG: configs.dump(config)})
    return folder


def last_round_with(config: RenewConfig, outcome: str) -> Path | None:
    """The last round, if it has this outcome and the same config."""
    rounds = list_rounds(Path(config.output))
    facts = read_outcome(rounds[-1]) if rounds else None
    if facts is None or facts["outcome"] != outcome or not _has_config(rounds[-1], config):
        return None
    return rounds[-1]


def repeats_last_round(folder: Path, config: RenewConfig, digest: str) -> str:
    """Name and outcome of the previous round, if it had the same config and data; "" otherwise."""
    earlier = [path for path in list_rounds(folder.parent) if path.name < folder.name]
    facts = read_outcome(earlier[-1]) if earlier else None
    if facts is None or facts["digest"] != digest or not _has_config(earlier[-1], config):
        return ""
    return f"{earlier[-1].name} ({facts['outcome']})"


def _has_config(folder: Path, config: RenewConfig) -> bool:
    """True if the round has this config, apart from `promote`."""
    stored = configs.load(folder / CONFIG, RenewConfig)
    return replace(stored, promote=config.promote) == config
