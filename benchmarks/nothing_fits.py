"""Calibrations that ship, and how well they tell requests that a catalogue can serve from those that it cannot.

    python benchmarks/nothing_fits.py --fit DATA/bfcl DATA/toole … [--test DATA/n8n …] [--chat DATA/tooldet]
        [--model bundled:minilm] [--max-tools 700] [--max-queries 300] [--work FOLDER] [--out FILE]

Each catalogue is measured by calibrations and thresholds of the others: those of --fit by the rest of --fit, those of
--test by all of --fit, whose numbers are printed for retrievers/calibration/shipped.py. Three kinds of requests cannot
be served: the catalogue's own queries with their gold tools hidden, queries of the other catalogues (some of which it
may serve after all), and --chat, a folder of labels, whose queries need no tool.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
from harness import make_parser, write_json

from pipelines.calibration import make_reader
from pipelines.context import make_context
from pipelines.data.dataset import DataSet, load_dataset, stable_hash
from pipelines.data.labels import load_labels
from pipelines.index.calibrate import collect_evidence, fit_calibration
from pipelines.index.calibration_report import CalibrationQuery, judge_answers, measure_answers
from retrievers.index import Index, build
from retrievers.kind import Context
from retrievers.settings import BM25Settings, DenseSettings, HybridSettings

RETRIEVERS = ("bm25", "dense", "hybrid")
FOREIGN, CHAT = 20, 100
"""Queries taken of every other catalogue, and of --chat."""


def sample(data: DataSet, max_tools: int, max_queries: int) -> tuple[list[str], list[frozenset[str]], set[str]]:
    """Some queries in English, their gold tools, and the ids of a catalogue that holds these."""
    splits = ("test", "dev") if "test" in data.gold else ("train", "dev")
    gold = {query: tools for split in splits for query, tools in data.gold.get(split, {}).items()}
    ids = [tool.id for tool in data.tools]
    if any(query.startswith("en:") for query in gold):  # a set in two languages
        gold = {query: tools for query, tools in gold.items() if query.startswith("en:")}
        ids = [tool for tool in ids if tool.startswith("en/")]
    kept: set[str] = set()
    queries = []
    for query in sorted(gold, key=lambda query: stable_hash("cal/" + query))[:max_queries]:
        if len(kept | gold[query]) <= max_tools:
            kept |= gold[query]
            queries.append(query)
    others = sorted((tool for tool in ids if tool not in kept), key=lambda tool: stable_hash("tool/" + tool))
    kept |= set(others[: max_tools - len(kept)])
    return [data.queries[query].text for query in queries], [gold[query] for query in queries], kept


class Catalogue:
    """One data set with an index of its tools, and the evidence of its queries."""

    def __init__(self, folder: str, options: argparse.Namespace, work: Path, context: Context) -> None:
        data = load_dataset(folder)
        self.name = data.name
        self.texts, gold, kept = sample(data, options.max_tools, options.max_queries)
        tools = [tool for tool in data.tools if tool.id in kept]
        settings = {
            "bm25": BM25Settings(),
            "dense": DenseSettings(model=options.model),
            "hybrid": HybridSettings(of=("bm25", "dense")),
        }
        build(work / data.name, tools, settings, context)
        self.index = Index(work / data.name, context)
        self.own = {name: collect_evidence(self.index, name, self.texts, gold) for name in RETRIEVERS}
        print(f"{self.name}: {len(tools)} tools, {len(self.texts)} queries", file=sys.stderr, flush=True)

    def unserved(self, name: str, texts: Sequence[str]) -> list[CalibrationQuery]:
        """Evidence of requests for which there is no tool."""
        return [query for query in collect_evidence(self.index, name, texts, [()] * len(texts)) if query.hidden]


def few(texts: Sequence[str], count: int) -> list[str]:
    """Some of the texts, drawn by a hash."""
    return sorted(texts, key=stable_hash)[:count]


def measure(
    name: str, tested: Catalogue, fitted: Sequence[Catalogue], requests: dict[str, list[str]]
) -> dict[str, float]:
    """The figures of one retriever on one catalogue."""
    calibration = fit_calibration([other.own[name] for other in fitted], make_reader(tested.index, name).rising)
    row = asdict(measure_answers(judge_answers(calibration, tested.own[name]), calibration.min_score))
    for label, texts in requests.items():
        shown = [query for query in tested.own[name] if not query.hidden]
        both = measure_answers(
            judge_answers(calibration, [*shown, *tested.unserved(name, texts)]), calibration.min_score
        )
        row |= {f"auc_{label}": both.auc, f"refused_{label}": both.refused}
    return row


def main() -> None:
    """Print a table per retriever."""
    parser = make_parser(__doc__)
    parser.add_argument("--fit", nargs="+", required=True, metavar="DATA")
    parser.add_argument("--test", nargs="*", default=[], metavar="DATA")
    parser.add_argument("--chat", metavar="LABELS")
    parser.add_argument("--model", default="bundled:minilm")
    parser.add_argument("--max-tools", type=int, default=700)
    parser.add_argument("--max-queries", type=int, default=300)
    parser.add_argument("--work", type=Path)
    options = parser.parse_args()
    context = make_context("cpu")
    with tempfile.TemporaryDirectory() as scratch:
        work = options.work or Path(scratch)
        fitted = [Catalogue(folder, options, work, context) for folder in options.fit]
        tested = [*fitted, *(Catalogue(folder, options, work, context) for folder in options.test)]
        chat = []
        if options.chat:
            chat = [label.text for label in load_labels(options.chat).split("test") if not label.needs]
        facts: dict[str, object] = {}
        for name in RETRIEVERS:
            rows = {}
            for one in tested:
                foreign = [text for other in tested if other is not one for text in few(other.texts, FOREIGN)]
                requests = {"foreign": foreign} | ({"chat": few(chat, CHAT)} if chat else {})
                rows[one.name] = measure(name, one, [other for other in fitted if other is not one], requests)
            columns = list(next(iter(rows.values())))
            rows["mean"] = {column: float(np.mean([row[column] for row in rows.values()])) for column in columns}
            print(f"\n{name:12} " + " ".join(f"{column:>15}" for column in columns))
            for label, row in rows.items():
                print(f"{label:12} " + " ".join(f"{row[column]:15.3f}" for column in columns))
            shipped = fit_calibration([one.own[name] for one in fitted], make_reader(fitted[0].index, name).rising)
            print(f"all of --fit: {shipped}")
            facts[name] = {"rows": rows, "calibration": asdict(shipped)}
    write_json(options.out, facts)


if __name__ == "__main__":
    main()
