"""Calibrations that ship for encoders that were trained on public sets: each set by the training that left it out.

    python benchmarks/left_out_calibration.py configs/encoder/tools.yaml FOLDER [...] [--encoder "0.5 int8"]
    python benchmarks/left_out_calibration.py configs/encoder/tools.yaml --model bundled:multilingual --sets toole bfcl

A FOLDER holds the `rankings.npz` of `benchmarks/encoder_forms.py`; with --model the sets are embedded here. Each set is
measured by a calibration of the others; the one of all sets is printed for retrievers/calibration/shipped.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
from harness import make_parser, write_json
from hybrid_fusion import read_lists

from pipelines import config as configs
from pipelines.context import make_context
from pipelines.index.calibrate import fit_calibration
from pipelines.index.calibration_report import CalibrationQuery, judge_answers, measure_answers
from pipelines.models import find_model
from pipelines.train.encoder.sets import EncoderSet, load_set
from pipelines.train.encoder.settings import EncoderConfig
from retrievers.base import Retriever
from retrievers.calibration.evidence import HEAD, EvidenceReader
from retrievers.dense.encoder import Encoder
from retrievers.fusion import DEPTH, add_scores
from retrievers.kind import Block
from retrievers.lexical.bm25 import SCORE_UNIT, BM25Kind
from retrievers.rows import Rows
from retrievers.settings import BM25Settings
from retrievers.types import Ranking

Queries = list[CalibrationQuery]


def open_bm25(data: EncoderSet) -> Retriever:
    """BM25 over the tools of a set, whose ids are their rows."""
    rows = Rows(tuple(f"{row:06d}" for row in range(len(data.ids))), np.ones(len(data.ids), dtype=bool))
    kind = BM25Kind(BM25Settings(), make_context("cpu"))
    return kind.open([Block(kind.rows(data.training.documents), rows.live)], rows, "", _no_other)


def _no_other(name: str) -> Retriever:
    raise AssertionError(f"BM25 opens no other retriever, got {name}")


def embed(model: str, data: EncoderSet) -> list[Ranking]:
    """Rankings by an encoder."""
    encoder = Encoder(find_model(model), 64, "cpu")
    rows = Rows(tuple(f"{row:06d}" for row in range(len(data.ids))), np.ones(len(data.ids), dtype=bool))
    documents = encoder.documents(data.training.documents)
    return [rows.best(row, DEPTH) for row in encoder.queries(data.judged.queries) @ documents.T]


def collect(data: EncoderSet, dense: Sequence[Ranking]) -> tuple[dict[str, Queries], dict[str, EvidenceReader]]:
    """Evidence of every query, as it is and with its gold tools hidden, by retriever."""
    bm25, texts = open_bm25(data), list(data.judged.queries)
    gold = [{f"{row:06d}" for row in rows} for rows in data.judged.gold]
    lexical = bm25.search(texts, DEPTH)
    readers = {"dense": EvidenceReader((_Unbounded(),)), "hybrid": EvidenceReader((bm25, _Unbounded()))}
    queries: dict[str, Queries] = {name: [] for name in readers}
    for text, needed, *lists in zip(texts, gold, lexical, dense, strict=True):
        for hidden in (False, True):
            parts = [ranking.without(needed) if hidden else ranking for ranking in lists]
            forms = {"dense": parts[1], "hybrid": add_scores(parts, HEAD, (SCORE_UNIT, 1.0))}
            for name, form in forms.items():
                own = replace(form.cut(HEAD), parts=tuple(parts[1:] if name == "dense" else parts))
                [rows] = readers[name].read([text], [own])
                queries[name].append(CalibrationQuery(rows, np.array([tool in needed for tool in own.ids]), hidden))
    return queries, readers


class _Unbounded:
    """Stands for an encoder, whose scores have no bound by the query."""

    fingerprint = ""

    def search(self, queries: Sequence[str], k: int) -> list[Ranking]:
        raise NotImplementedError("the rankings are known")


def report(sets: Mapping[str, Queries], rising: Sequence[bool]) -> dict[str, object]:
    """Print each set by a calibration of the others, and the calibration of all."""
    rows = {}
    for name, queries in sets.items():
        fitted = fit_calibration([other for key, other in sets.items() if key != name], rising)
        rows[name] = asdict(measure_answers(judge_answers(fitted, queries), fitted.min_score))
    columns = list(next(iter(rows.values())))
    rows["mean"] = {column: float(np.mean([row[column] for row in rows.values()])) for column in columns}
    print(f"{'':16}" + " ".join(f"{column:>9}" for column in columns))
    for label, row in rows.items():
        print(f"{label:16}" + " ".join(f"{row[column]:9.3f}" for column in columns))
    calibration = fit_calibration(list(sets.values()), rising)
    print(f"of all sets: {calibration}", flush=True)
    return {"rows": rows, "calibration": asdict(calibration)}


def main() -> None:
    """Fit and print."""
    parser = make_parser(__doc__)
    parser.add_argument("config", type=Path, help="of the encoder: where the sets are")
    parser.add_argument("folders", nargs="*", type=Path, metavar="FOLDER")
    parser.add_argument("--encoder", default="0.5 int8")
    parser.add_argument("--model", help="embed with this encoder, in place of FOLDER")
    parser.add_argument("--sets", nargs="*", help="names of sets (all)")
    options = parser.parse_args()
    config = configs.load(options.config, EncoderConfig)
    sources = {source.name: source for group in config.groups.values() for source in group}
    lists = {name: own for folder in options.folders for name, own in read_lists(folder).items() if name in sources}
    collected: dict[str, dict[str, Queries]] = {}
    rising: dict[str, list[bool]] = {}
    for name in options.sets or lists:
        data = load_set(sources[name], config)
        dense = embed(options.model, data) if options.model else lists[name].rankings[options.encoder]
        collected[name], readers = collect(data, dense)
        rising = {retriever: reader.rising for retriever, reader in readers.items()}
        print(f"{name}: {len(data.ids)} tools, {len(data.judged.queries)} queries", flush=True)
    facts = {}
    for retriever, columns in rising.items():
        print(f"\n{retriever}")
        facts[retriever] = report({name: own[retriever] for name, own in collected.items()}, columns)
    write_json(options.out, facts)


if __name__ == "__main__":
    main()
