"""`rewrite-index confirm`, `detect` and `ablate`: what an index that remembers and detects adds to the command."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from pipelines import config as configs
from pipelines.cli.index_commands import say, tell_change
from pipelines.context import make_context
from pipelines.data.labels import load_labels
from pipelines.detection import DetectionScores, detect, find_detector, score_detections
from pipelines.index.build import IndexConfig
from pipelines.serve.catalogue.feedback import read_feedback
from retrievers.errors import BadInput
from retrievers.index import Index, confirm
from retrievers.masstool.settings import MassToolSettings


def confirm_queries(arguments: argparse.Namespace) -> int:
    pairs = [pair for source in arguments.pairs for pair in _pairs(Path(source))]
    return tell_change(arguments.index, confirm(arguments.index, pairs, make_context(arguments.device), arguments.wait))


def _pairs(source: Path) -> Iterator[tuple[str, list[str]]]:
    """Confirmed queries of a file of JSON lines, or of a server's feedback folder."""
    if source.is_dir():
        yield from ((str(row["utterance"]), list(row["tools"])) for row in read_feedback(source))
        return
    try:
        lines = source.read_text(encoding="utf-8").split("\n")
    except FileNotFoundError as error:
        raise BadInput(f"{source} does not exist; check the path") from error
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{source} cannot be read as text ({error})") from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            utterance, tools = row["utterance"], row["tools"]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise BadInput(f'{source}:{number}: a line is {{"utterance": …, "tools": [ids]}}') from error
        if not isinstance(utterance, str) or not isinstance(tools, list) or not all(isinstance(t, str) for t in tools):
            raise BadInput(f"{source}:{number}: utterance is text, tools a list of ids")
        yield utterance, tools


def detect_labels(arguments: argparse.Namespace) -> int:
    labels = load_labels(arguments.data).split(arguments.split)
    index = Index(arguments.index, make_context(arguments.device))
    detector = find_detector(index, arguments.retriever)
    if detector is None:
        raise BadInput(f"the retriever {arguments.retriever!r} has no detector; build one of kind masstool with labels")
    if arguments.threshold is not None and not 0 <= arguments.threshold <= 1:
        raise BadInput("--threshold is a probability, between 0 and 1")
    found = score_detections(labels, detect(detector, [each.text for each in labels], arguments.threshold))
    edge = detector.threshold if arguments.threshold is None else arguments.threshold
    if arguments.json:
        rows = [{**dataclasses.asdict(each), "balanced": each.balanced} for each in found]
        say(json.dumps({"threshold": edge, "fingerprint": index.fingerprint, "sources": rows}, indent=1))
        return 0
    say(f"{arguments.data}, {arguments.split}, threshold {edge:.3f}")
    say(_table(found))
    return 0


def _table(found: Sequence[DetectionScores]) -> str:
    width = max(len(each.source) for each in found)
    lines = [f"{'source':<{width}}  need a tool  kept   need none  turned away  balanced"]
    for each in found:
        kept, refused, both = (_figure(value) for value in (each.kept, each.refused, each.balanced))
        lines.append(
            f"{each.source:<{width}}  {each.needing:>11}  {kept:<5}  {each.others:>9}  {refused:<11}  {both}".rstrip()
        )
    return "\n".join(lines)


def _figure(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def ablate(arguments: argparse.Namespace) -> int:
    config = configs.load_from_args(arguments, IndexConfig)
    if config is None:
        return 0
    from pipelines.index.ablation import ablation, table

    if any(
        isinstance(each, MassToolSettings) and each.train and each.train.again for each in config.retrievers.values()
    ):
        print("train.again is left out: every row learns from train alone, once", file=sys.stderr)
    rows = ablation(
        config, make_context(arguments.device, sys.stderr.isatty()), arguments.split, tuple(arguments.without or ())
    )
    say(table(rows))
    if arguments.out:
        arguments.out.write_text(json.dumps({name: row for name, row in rows.items()}, indent=1) + "\n")
    return 0
