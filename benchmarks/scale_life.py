"""The life of an index: loading it, and changing one tool of it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

from scale_figures import Figures, clocked

from pipelines.search import ToolSearch
from retrievers.index import Index, add, remove
from retrievers.kind import Context
from retrievers.types import Tool

K = 10


def loading(figures: Figures, folder: Path, repeats: int) -> None:
    """Opening the index in fresh processes, files in the page cache."""
    figures.title("3. Load, each time in a fresh process (files in the page cache)")
    child = [sys.executable, str(Path(__file__).with_name("scale_load.py")), str(folder)]
    for flags, times in (([], repeats), (["--model"], max(1, repeats // 2))):
        runs = [
            json.loads(subprocess.run([*child, *flags], check=True, stdout=subprocess.PIPE, text=True).stdout)
            for _ in range(times)
        ]
        label = "with model" if flags else "no torch"
        if not flags and any(run["torch imported"] for run in runs):
            label = "torch imported (!)"
        ready = [run["Index()"] + sum(value for key, value in run.items() if key.startswith("open")) for run in runs]
        figures.note(f"{label}: Index() until all retrievers ready", "s", ready, "< 5 s", median(ready) < 5)
        search = [value + run["ToolSearch"] for value, run in zip(ready, runs, strict=True)]
        figures.note(f"{label}: the same + ToolSearch (exact names)", "s", search, "< 5 s", median(search) < 5)
        for key in runs[0]:
            if key != "torch imported" and (not flags or "dense search" in key):
                unit = "MB" if key.startswith("MB") else "s"
                figures.note(f"  {label}: {key.removeprefix('MB ')}", unit, [run[key] for run in runs])
    held = sum(path.stat().st_size for path in folder.iterdir()) / 1e6
    figures.note("files of the index", "MB", [held], digits=1)


def invention(number: int) -> tuple[Tool, str]:
    """A tool like no other, and a query that only it answers."""
    name = f"quaggaLedger{number}"
    text = f"Reconciles zebrafish invoices with the quagga ledger number {number} and mails the notary"
    return Tool(f"bench/{name}", name, text), f"reconcile zebrafish invoices with quagga ledger {number}"


def life(figures: Figures, index: Index, context: Context, adds: int, others: int) -> Index:
    """add, update and remove of one tool, in process: from the call to every retriever knowing. Returns the index."""
    figures.title("5. add, update, remove of one tool, model loaded: from the call until bm25, dense and hybrid know")
    for name in index.names:
        index.retriever(name).search(["warm up"], K)
    folder = index.folder
    added: list[Tool] = []
    plain: list[dict[str, float]] = []
    folds: list[dict[str, float]] = []
    for number in range(adds):
        tool, query = invention(number)
        before = len(index.manifest.segments)
        index, times = _step(index, tool, query, lambda tool: add(folder, [tool], context), True)
        (folds if len(index.manifest.segments) <= before else plain).append(times)
        added.append(tool)
    _stages(figures, "add", plain, "< 1 s")
    _stages(figures, "add, folding", folds, "")
    victims = list(index.tools.values())[:others]
    times_of: dict[str, list[dict[str, float]]] = {"update": [], "remove": []}
    for number, victim in enumerate(victims):
        tool, query = invention(1000 + number)
        changed = Tool(victim.id, tool.name, tool.description)
        index, times = _step(index, changed, query, lambda tool: add(folder, [tool], context), True)
        times_of["update"].append(times)
    for number, tool in enumerate(added[:others]):
        query = invention(number)[1]
        index, times = _step(index, tool, query, lambda tool: remove(folder, [tool.id], context), False)
        times_of["remove"].append(times)
    for name, listed in times_of.items():
        _stages(figures, name, listed, "< 1 s")
    return index


def _step(
    index: Index, tool: Tool, query: str, change: Callable[[Tool], object], there: bool
) -> tuple[Index, dict[str, float]]:
    """One change, timed by stage; fails where a retriever does not know of it afterwards."""
    names, seconds = ["call", "refresh", *index.names, "ToolSearch"], list[float]()
    with clocked(seconds):
        change(tool)
    with clocked(seconds):
        index = index.refreshed()
    for name in index.names:
        with clocked(seconds):
            ids = index.retriever(name).search([query], K)[0].ids
        if (tool.id in ids) is not there:
            raise SystemExit(f"{name} {'does not find' if there else 'still finds'} {tool.id} after the change")
    with clocked(seconds):
        ids = ToolSearch(index, "hybrid").search([query], K)[0].ids
    if (tool.id in ids) is not there:
        raise SystemExit(f"ToolSearch {'does not find' if there else 'still finds'} {tool.id} after the change")
    return index, dict(zip(names, seconds, strict=True))


def _stages(figures: Figures, name: str, listed: Sequence[dict[str, float]], target: str) -> None:
    if not listed:
        return
    whole = [sum(times.values()) - times["ToolSearch"] for times in listed]
    figures.note(f"{name}: whole, bm25 + dense + hybrid", "s", whole, target, median(whole) < 1 if target else None)
    served = [sum(times.values()) for times in listed]
    figures.note(f"{name}: the same + ToolSearch", "s", served, target, median(served) < 1 if target else None)
    for stage in listed[0]:
        what = stage if stage in ("call", "refresh") else f"open and first search of {stage}"
        figures.note(f"  {name}: {what}", "s", [times[stage] for times in listed])
