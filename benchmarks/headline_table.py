"""Rows of the headline table: means over sets, sets that are better or worse, and the files that hold them."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pipelines.evaluate.significance import holm, randomisation_test
from pipelines.runs import as_json, environment, write_files

METRICS = ("recall@5", "ndcg@5", "comp@5")
CHOICE = "recall@5"
BASE = "minilm"
CPU = "cpu.json"
"""File of the CPU time per query, beside the run folder's own files."""
PUBLISHED = Path("docs/figures/headline-h200.csv")
"""Figures of the reranking note per set, measured on an H200."""


@dataclass(frozen=True, slots=True)
class System:
    """A row: its name in the table, and the row that it is compared with beside MiniLM."""

    title: str
    against: str
    gpu: str = ""
    """Milliseconds per query on an H200, from the reranking note: with 256 queries at once, and alone."""


SYSTEMS: Mapping[str, System] = {
    "minilm": System("MiniLM as it comes", ""),
    "bm25": System("BM25", "minilm"),
    "lexical": System("BM25 with a bonus for names", "bm25"),
    "old": System("BM25 + MiniLM, by ranks", "bm25"),
    "tools": System("`bundled:tools`, tuned on other sets", "old"),
    "added": System("BM25 + `bundled:tools`, scores added", "tools"),
    "hybrid": System("hybrid: the same with the bonus for names", "added"),
    "languages": System("hybrid, multilingual where needed: the default", "hybrid"),
    "rules": System("hybrid, clauses searched too (`rules`)", "hybrid"),
    "cross-encoder": System("BM25 + MiniLM, 20 tools reranked by 22M", "old", "GPU 8, 12"),
    "lm-1.5b": System("hybrid, 20 tools reranked by 1.5B", "hybrid", "GPU 18, 100"),
    "labels": System("labels of your own: MassTool on `bundled:tools`", "hybrid"),
}
SHORT = {"minilm": "MiniLM", "bm25": "BM25", "old": "by ranks", "tools": "`bundled:tools`"} | {
    "added": "added",
    "hybrid": "hybrid",
}
"""Rows that others are compared with, in the table."""
SHARED = ("toollens", "toolbench", "nl2bash")
"""Sets whose tools are, in part or all, in catalogues that encoders and rerankers learned from."""
MORE = ("use", "multilingual", "use-hybrid", "multilingual-hybrid", "use-languages")
"""Systems of the CSV that are no row of the table."""
Values = dict[str, dict[str, np.ndarray]]
"""System -> metric -> one value per query."""


@dataclass(frozen=True, slots=True)
class SetResult:
    """One judged set."""

    name: str
    queries: int
    tools: int
    training_queries: int
    official: bool
    values: Values
    cpu_ms: Mapping[str, float]


def read_result(name: str, folders: Sequence[Path], training_queries: int, official: bool) -> SetResult:
    """The result of a set: scores per query of its run folders, and the CPU time noted beside them."""
    values: Values = {}
    cpu_ms: dict[str, float] = {}
    for folder in folders:
        lines = [json.loads(line) for line in (folder / "queries.jsonl").read_text().splitlines()]
        for system in lines[0]["scores"]:
            values[system] = {
                metric: np.array([line["scores"][system][metric] for line in lines]) for metric in METRICS
            }
        cpu_ms |= json.loads((folder / CPU).read_text())["cpu_ms"]
    tools = json.loads((folders[0] / "metrics.json").read_text())["tools"]
    return SetResult(name, len(lines), tools, training_queries, official, values, cpu_ms)


def corrected_tests(results: Sequence[SetResult], system: str, rival: str) -> dict[str, tuple[float, float]]:
    """Set -> difference in R@5 and its p, corrected for the sets."""
    both = [result for result in results if system in result.values and rival in result.values]
    differences = [result.values[system][CHOICE] - result.values[rival][CHOICE] for result in both]
    p_values = holm([float(randomisation_test(own[:, None])[0]) for own in differences])
    return {result.name: (float(own.mean()), p) for result, own, p in zip(both, differences, p_values, strict=True)}


def count(tests: Mapping[str, tuple[float, float]]) -> str:
    """Sets that are better and worse, as the table shows them."""
    clear = [difference for difference, p in tests.values() if p < 0.05]
    return f"{sum(one > 0 for one in clear)}, {sum(one < 0 for one in clear)}" if tests else ""


def set_rows(results: Sequence[SetResult], published: Sequence[Mapping[str, str]] = ()) -> list[dict[str, str]]:
    """One row per set and system, for the CSV; those published elsewhere are passed on."""
    rows: list[dict[str, str]] = []
    for system in (*SYSTEMS, *MORE):
        rival = SYSTEMS[system].against if system in SYSTEMS else ""
        tests = {BASE: corrected_tests(results, system, BASE), rival: corrected_tests(results, system, rival)}
        for result in results:
            if system not in result.values:
                continue
            means = {metric: f"{result.values[system][metric].mean():.4f}" for metric in METRICS}
            p_values = {name: own.get(result.name) for name, own in tests.items()}
            rows.append(
                {"set": result.name, "system": system, "queries": str(result.queries), "tools": str(result.tools)}
                | means
                | {"p_minilm": _p(p_values[BASE] if system != BASE else None), "against": rival}
                | {"p_against": _p(p_values[rival] if rival else None)}
                | {"cpu_ms": f"{result.cpu_ms[system]:.2f}" if system in result.cpu_ms else ""}
                | {"machine": "cpu"}
                | {
                    "training_queries": str(result.training_queries),
                    "split": "official" if result.official else "random",
                }
            )
        rows.extend({**row, "training_queries": "", "split": ""} for row in published if row["system"] == system)
    return rows


def _p(test: tuple[float, float] | None) -> str:
    return "" if test is None else f"{test[1]:.4f}"


def markdown(results: Sequence[SetResult], published: Sequence[Mapping[str, str]]) -> str:
    """The table of means; `n` is shown where a row has fewer sets than the others."""
    head = "| | R@5 | N@5 | C@5 | R@5, new tools | against MiniLM | against another row | ms |"
    lines, known = [head, "|---|---|---|---|---|---|---|---|"], {result.name for result in results}
    for name, system in SYSTEMS.items():
        own = [result for result in results if name in result.values]
        elsewhere = [row for row in published if row["system"] == name and row["set"] in known]
        if own:
            means = [np.mean([result.values[name][metric].mean() for result in own]) for metric in METRICS]
            means.append(mean_recall({one.name: one.values[name][CHOICE].mean() for one in own}))
            base = count(corrected_tests(own, name, BASE)) if name != BASE else ""
            rival = count(corrected_tests(own, name, system.against)) if system.against else ""
            timed = [result.cpu_ms[name] for result in own if name in result.cpu_ms]
            spent = f"CPU {np.mean(timed):.1f}" if timed else ""
        elif elsewhere:
            means = [np.mean([float(row[metric]) for row in elsewhere]) for metric in METRICS]
            means.append(mean_recall({row["set"]: float(row[CHOICE]) for row in elsewhere}))
            base, rival, spent = "", count(_published_tests(elsewhere, published)), system.gpu
        else:
            continue
        few = "" if len(own or elsewhere) == len(results) else _note_sets(own, system)
        cells = [f"{mean:.3f}".removeprefix("0") for mean in means]
        against = f"{SHORT[system.against]}: {rival}" if rival else ""
        lines.append(f"| {system.title}{few} | {' | '.join(cells)} | {base} | {against} | {spent} |")
    return "\n".join(lines)


def _note_sets(own: Sequence[SetResult], system: System) -> str:
    """The number of sets of a row that has not all, and R@5 of its rival on the same sets."""
    rival = [result.values[system.against][CHOICE].mean() for result in own if system.against in result.values]
    beside = f", where {SHORT[system.against]} has {np.mean(rival):.3f}".replace(" 0.", " .") if rival else ""
    return f" ({len(own)} sets{beside})"


def mean_recall(recalls: Mapping[str, float]) -> float:
    """Mean over the sets whose tools no training set has; over all, if there are no others."""
    new = [value for name, value in recalls.items() if name not in SHARED]
    return float(np.mean(new or list(recalls.values())))


def _published_tests(
    rows: Sequence[Mapping[str, str]], published: Sequence[Mapping[str, str]]
) -> dict[str, tuple[float, float]]:
    """Set -> difference to the front of the same run, and its published p."""
    fronts = {row["set"]: row for row in published if row["system"] == rows[0]["against"]}
    return {
        row["set"]: (float(row[CHOICE]) - float(fronts[row["set"]][CHOICE]), float(row["p_against"])) for row in rows
    }


def read_published() -> list[dict[str, str]]:
    """The published rows; an upper bound of p is given as the bound."""
    with PUBLISHED.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def write_csv(path: Path, rows: Sequence[Mapping[str, str]]) -> None:
    """Write the rows of all sets."""
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_files(path.parent, {path.name: text.getvalue()})


def write_means(folder: Path, results: Sequence[SetResult]) -> None:
    """Means over the sets as a run folder, which `rewrite-eval --check` reads; a set's R@5 is `recall@5 of SET`."""
    systems: dict[str, dict[str, float]] = {}
    for name in (*SYSTEMS, *MORE):
        own = [result for result in results if name in result.values]
        if own:
            systems[name] = {
                metric: round(float(np.mean([result.values[name][metric].mean() for result in own])), 6)
                for metric in METRICS
            }
            systems[name][f"{CHOICE} of new tools"] = mean_recall(
                {one.name: float(one.values[name][CHOICE].mean()) for one in own}
            )
            systems[name] |= {f"{CHOICE} of {one.name}": float(one.values[name][CHOICE].mean()) for one in own}
    facts = {"dataset": "judged", "queries": sum(result.queries for result in results), "systems": systems}
    write_files(folder, {"metrics.json": as_json(facts), "environment.json": as_json(environment())})
