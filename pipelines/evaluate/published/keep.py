"""A run folder of `rewrite-eval` as a file of figures."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import yaml

from pipelines.evaluate.published.figures import FigureRow, Figures, read_figures, refuse_twins
from pipelines.runs import as_json, write_files
from pipelines.system_description import parse_description
from retrievers.errors import BadInput

KEPT = ("recall@1", "recall@3", "recall@5", "recall@10", "ndcg@3", "ndcg@5", "comp@3", "comp@5", "mrr")
GROUPED = ("recall@5", "ndcg@5", "comp@5")
PLACES = 6
"""Decimal places that are kept: pages round once more, and what was rounded to four may come out one too high."""


def keep(run: Path, folder: Path, note: str = "") -> Path:
    """Writes what a run folder says into the folder of figures; the file is called after the run.

    Run again and kept again, it keeps its note and what was said of its rows. Nothing is written that the table would
    refuse.
    """
    figures = replace(from_run(run), note=note)
    path = folder / f"{file_name(run)}.json"
    found = read_figures(folder) if folder.is_dir() else {}
    if (before := found.get(path.stem)) is not None:
        if before.run != figures.run:
            raise BadInput(f"{path} holds the figures of {before.run or 'something else'}; rename it, or the run")
        figures = _as_before(figures, before)
    refuse_twins({**found, path.stem: figures})
    write_files(folder, {path.name: encode(figures)})
    return path


def _as_before(figures: Figures, before: Figures) -> Figures:
    said = {row.system: row for row in before.rows}
    rows = [
        replace(row, variant=said[row.system].variant, note=said[row.system].note) if row.system in said else row
        for row in figures.rows
    ]
    return replace(figures, rows=tuple(rows), note=figures.note or before.note)


def file_name(run: Path) -> str:
    """runs/toollens/eval-tuned -> toollens-eval-tuned"""
    parts = [part for part in run.parts if part not in ("runs", "..", ".", "/")]
    return re.sub(r"[^\w-]+", "-", "-".join(parts[-2:]))


def encode(figures: Figures) -> str:
    """JSON without what is left at its default."""
    return as_json(_bare(asdict(figures)))


def _bare(value: dict[str, Any]) -> dict[str, Any]:
    kept = {key: item for key, item in value.items() if item not in ("", None, False, (), {}, 0) or key == "parameters"}
    if "rows" in kept:
        kept["rows"] = [_bare(row) for row in value["rows"]]
    return {key: item for key, item in kept.items() if item is not None}


def from_run(run: Path) -> Figures:
    """What a run folder says."""
    told, world, config = (_read(run, name) for name in ("metrics.json", "environment.json", "config.yaml"))
    if config.get("most_queries"):
        raise BadInput(f"{run} looked at {told['queries']} queries only (most_queries); run it on all of them")
    made = {name: parse_description(facts, str(run)) for name, facts in told.get("made_of", {}).items()}
    if not made:
        raise BadInput(f"{run} does not say what its systems are made of; run it again with this version")
    main = _main_systems(made, told.get("fusions", {}))
    rows = []
    for name, parts in made.items():
        p_values, against = _compared(told, name, config.get("baseline") is not None)
        seconds = told["seconds_per_query"].get(name)
        rows.append(
            FigureRow(
                retriever=parts.retriever,
                rewriter=parts.rewriter,  # type: ignore[arg-type]  # checked when the file is read
                name=_told(told.get("fusions", {}).get(name)),
                system=name,
                variant=name not in main,
                metrics=_some(told["systems"][name], KEPT),
                groups={group: _some(each[name], GROUPED) for group, each in told["groups"].items()},
                against=against,
                p_values=p_values,
                milliseconds=round(seconds * 1000, 2) if seconds else None,
                parameters=parts.parameters,
            )
        )
    return Figures(
        dataset=told["dataset"],
        rows=tuple(rows),
        protocol=told["protocol"],
        split=told["split"],
        queries=told["queries"],
        tools=told["tools"],
        command=world["command"],
        machine=world["machine"],
        date=world["date"][:10],
        seeds=(config["seed"],),
        commit=world["commit"],
        run=str(run),
    )


def _compared(told: Mapping[str, Any], system: str, chosen: bool) -> tuple[dict[str, float], str]:
    """p by metric, and against what: the raw query of the same retriever where that was asked, or else the baseline,
    which comes first where the config has `chosen` one."""
    for rows in (() if chosen else told.get("rewriting", ()), told["comparisons"]):
        found = [each for each in rows if each["system"] == system and each["metric"] in KEPT]
        if found:
            return {each["metric"]: round(each["p_value"], PLACES) for each in found}, found[0]["baseline"]
    return {}, ""


def _main_systems(made: Mapping[str, Any], fusions: Mapping[str, Any]) -> set[str]:
    """One system for each place of the table: the first that is asked beside the raw query, or else the first."""
    chosen: dict[tuple[str, str], str] = {}
    for alone in (False, True):
        for name, parts in made.items():
            if (fusions.get(name, {}).get("raw") == 0) == alone:
                chosen.setdefault((parts.retriever, parts.rewriter), name)
    return set(chosen.values())


def _told(fusion: Mapping[str, Any] | None) -> str:
    if fusion is None:
        return ""
    return "the rewrite alone" if fusion["raw"] == 0 else f"{fusion['method']}, raw {fusion['raw']:g}"


def _some(metrics: Mapping[str, float], wanted: tuple[str, ...]) -> dict[str, float]:
    return {name: round(metrics[name], PLACES) for name in wanted if name in metrics}


def _read(run: Path, name: str) -> Any:
    path = run / name
    try:
        text = path.read_text(encoding="utf-8")
        return yaml.safe_load(text) if path.suffix == ".yaml" else json.loads(text)
    except FileNotFoundError as error:
        raise BadInput(f"{run} is not a finished run of rewrite-eval: it has no {name}") from error
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise BadInput(f"{path} cannot be read ({error}); run it again") from error
