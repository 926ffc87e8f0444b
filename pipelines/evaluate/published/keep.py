"""Turn a run folder of `rewrite-eval` into a file of figures."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import yaml

from pipelines.evaluate.published.figures import FigureFile, FigureRow, read_figures, refuse_conflicts
from pipelines.runs import as_json, write_files
from pipelines.system_description import parse_description
from retrievers.errors import BadInput

KEPT = ("recall@1", "recall@3", "recall@5", "recall@10", "ndcg@3", "ndcg@5", "comp@3", "comp@5", "mrr")
GROUPED = ("recall@5", "ndcg@5", "comp@5")
DECIMALS = 6


def keep(run: Path, folder: Path, note: str = "") -> Path:
    """Write the figures of a run folder into the folder of figures, in a file named after the run.

    A run that is kept again keeps its note and the notes and variants of its rows. Nothing is written that
    `refuse_conflicts` would refuse.
    """
    figures = replace(from_run(run), note=note)
    parts = [part for part in run.parts if part not in ("runs", "..", ".", "/")]
    name = re.sub(r"[^\w-]+", "-", "-".join(parts[-2:]))  # runs/toollens/eval-tuned -> toollens-eval-tuned
    path = folder / f"{name}.json"
    files = read_figures(folder) if folder.is_dir() else {}
    if (before := files.get(name)) is not None:
        if before.run != figures.run:
            raise BadInput(f"{path} holds the figures of {before.run or 'another source'}; rename it, or the run")
        known = {row.system: row for row in before.rows}
        rows = (
            replace(row, variant=known[row.system].variant, note=known[row.system].note) if row.system in known else row
            for row in figures.rows
        )
        figures = replace(figures, rows=tuple(rows), note=figures.note or before.note)
    refuse_conflicts({**files, name: figures})
    write_files(folder, {path.name: as_json(_without_defaults(asdict(figures)))})
    return path


def _without_defaults(value: dict[str, Any]) -> dict[str, Any]:
    kept = {key: item for key, item in value.items() if item not in ("", None, False, (), {}, 0) or key == "parameters"}
    if "rows" in kept:
        kept["rows"] = [_without_defaults(row) for row in value["rows"]]
    return {key: item for key, item in kept.items() if item is not None}


def from_run(run: Path) -> FigureFile:
    """Read the figures of a run folder."""
    metrics, environment, config = (_read(run, name) for name in ("metrics.json", "environment.json", "config.yaml"))
    if config.get("max_queries"):
        raise BadInput(f"{run} has {metrics['queries']} queries only (max_queries); run it on all of them")
    descriptions = {name: parse_description(facts, str(run)) for name, facts in metrics.get("made_of", {}).items()}
    if not descriptions:
        raise BadInput(f"{run} does not describe its systems; run `{environment['command']}` again with this version")
    fusions = metrics.get("fusions", {})
    main = _main_systems(descriptions, fusions)
    rows = []
    for name, description in descriptions.items():
        p_values, against = _p_values(metrics, name, config.get("baseline") is not None)
        seconds = metrics["seconds_per_query"].get(name)
        rows.append(
            FigureRow(
                retriever=description.retriever,
                rewriter=description.rewriter,  # type: ignore[arg-type]  # checked when the file is read
                name=_fusion_label(fusions.get(name)),
                system=name,
                variant=name not in main,
                metrics=_select(metrics["systems"][name], KEPT),
                groups={group: _select(values[name], GROUPED) for group, values in metrics["groups"].items()},
                against=against,
                p_values=p_values,
                milliseconds=round(seconds * 1000, 2) if seconds else None,
                parameters=description.parameters,
            )
        )
    return FigureFile(
        dataset=metrics["dataset"],
        rows=tuple(rows),
        protocol=metrics["protocol"],
        split=metrics["split"],
        queries=metrics["queries"],
        tools=metrics["tools"],
        command=environment["command"],
        machine=environment["machine"],
        date=environment["date"][:10],
        seeds=(config["seed"],),
        commit=environment["commit"],
        run=str(run),
    )


def _p_values(metrics: Mapping[str, Any], system: str, chosen_baseline: bool) -> tuple[dict[str, float], str]:
    """p per metric, and the system compared with: the config's baseline, else the raw query of the same retriever."""
    for rows in (() if chosen_baseline else metrics.get("rewriting", ()), metrics["comparisons"]):
        mine = [row for row in rows if row["system"] == system and row["metric"] in KEPT]
        if mine:
            return {row["metric"]: round(row["p_value"], DECIMALS) for row in mine}, mine[0]["baseline"]
    return {}, ""


def _main_systems(descriptions: Mapping[str, Any], fusions: Mapping[str, Any]) -> set[str]:
    """One system per cell of the table: the first that is fused with the raw query, else the first."""
    cells: dict[tuple[str, str], str] = {}
    for alone in (False, True):
        for name, description in descriptions.items():
            if (fusions.get(name, {}).get("raw") == 0) == alone:
                cells.setdefault((description.retriever, description.rewriter), name)
    return set(cells.values())


def _fusion_label(fusion: Mapping[str, Any] | None) -> str:
    if fusion is None:
        return ""
    return "the rewrite alone" if fusion["raw"] == 0 else f"{fusion['method']}, raw {fusion['raw']:g}"


def _select(metrics: Mapping[str, float], names: tuple[str, ...]) -> dict[str, float]:
    return {name: round(metrics[name], DECIMALS) for name in names if name in metrics}


def _read(run: Path, name: str) -> Any:
    path = run / name
    try:
        text = path.read_text(encoding="utf-8")
        return yaml.safe_load(text) if path.suffix == ".yaml" else json.loads(text)
    except FileNotFoundError as error:
        raise BadInput(f"{run} has no {name}; finish it with `rewrite-eval CONFIG`, which writes it") from error
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise BadInput(f"{path} cannot be read ({error}); run it again") from error
