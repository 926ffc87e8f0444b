"""`rewrite-index build`, `add`, `remove`, `confirm` and `calibrate`."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from pipelines import config as configs
from pipelines.cli.flags import DEFAULT_INDEX
from pipelines.context import make_context
from pipelines.data.dataset import load_dataset
from pipelines.index.build import IndexConfig, admit_tools, build_index, names_catalogue, read_tools
from pipelines.index.calibrate import calibrate_retriever
from pipelines.index.defaults import index_folder
from pipelines.index.takeover import refuse_takeover
from pipelines.index.training_summary import training_lines
from pipelines.serve.catalogue.feedback import read_feedback
from pipelines.shipped import find_catalogue
from retrievers.errors import BadInput
from retrievers.index import Change, Index, add, calibrate, confirm, remove
from retrievers.index.writer import as_stored


def run_build(arguments: argparse.Namespace) -> int:
    if names_catalogue(Path(find_catalogue(str(arguments.config)))):
        arguments.set.insert(0, f"catalogue={json.dumps([str(arguments.config)])}")
        arguments.config = DEFAULT_INDEX
    config = configs.load_from_args(arguments, IndexConfig)
    if config is None:
        return 0
    config = dataclasses.replace(config, catalogue=tuple(map(find_catalogue, config.catalogue)))
    started = time.monotonic()
    change = build_index(config, make_context(arguments.device, True), arguments.wait, arguments.resume)
    print(
        f"{config.index}: {change.added} tools, {', '.join(config.retrievers)}, "
        f"fingerprint {change.fingerprint}, {time.monotonic() - started:.1f} s"
    )
    for line in training_lines(Path(config.index)):
        print(line)
    return 0


def run_add(arguments: argparse.Namespace) -> int:
    sources = tuple(map(find_catalogue, arguments.catalogue))
    tools = admit_tools(read_tools(sources, arguments.format, providers_of(sources, arguments.provider)))
    context = make_context(arguments.device, True)
    known = Index(arguments.index, context).tools
    if not arguments.replace:
        refuse_takeover(arguments.index, known, tools)
    replaced = [tool.id for tool in tools if tool.id in known and known[tool.id] != as_stored(tool)]
    change = add(arguments.index, tools, context, arguments.wait)
    if replaced:
        print(f"replaced: {', '.join(replaced[:5])}{', …' * (len(replaced) > 5)}", file=sys.stderr)
    return _print_change(arguments.index, change)


def providers_of(sources: Sequence[str], named: Sequence[str]) -> dict[str, str]:
    """Catalogue -> provider, as `--provider` names them; one without a catalogue is for all that have none."""
    providers: dict[str, str] = {}
    for text in named:
        catalogue, _, name = text.rpartition("=")
        if not name.strip():
            raise BadInput(f"--provider: {text!r} names no provider; write NAME, or CATALOGUE=NAME")
        providers |= {catalogue: name} if catalogue else dict.fromkeys(set(sources) - providers.keys(), name)
    return providers


def run_remove(arguments: argparse.Namespace) -> int:
    ids = [line for line in read_words(arguments.ids) if line.strip()]
    change = remove(arguments.index, ids, make_context(arguments.device), arguments.wait)
    return _print_change(arguments.index, change)


def run_confirm(arguments: argparse.Namespace) -> int:
    pairs = [pair for source in arguments.pairs for pair in _read_pairs(Path(source))]
    change = confirm(arguments.index, pairs, make_context(arguments.device), arguments.wait)
    return _print_change(arguments.index, change)


def run_calibrate(arguments: argparse.Namespace) -> int:
    folder = index_folder(str(arguments.index))
    index, data = Index(folder, make_context(arguments.device)), load_dataset(arguments.data)
    names = list(dict.fromkeys(arguments.retriever or index.names))
    results = {name: calibrate_retriever(index, name, data, arguments.split) for name in names}
    calibrations = {name: calibration for name, (calibration, _) in results.items()}
    change = None if arguments.dry_run else calibrate(folder, calibrations, arguments.wait)
    if arguments.json:
        facts = {
            name: {"calibration": dataclasses.asdict(calibration), "report": dataclasses.asdict(report)}
            for name, (calibration, report) in results.items()
        }
        print(json.dumps(facts, indent=1))
        return 0
    width = max(map(len, names))
    print(f"{'':{width}}  error  AUC    min-score  right answers lost  refused without their tools")
    for name, (calibration, report) in results.items():
        threshold, lost = f"{calibration.min_score:.2f}", f"{report.lost:.3f}"
        print(f"{name:{width}}  {report.error:.3f}  {report.auc:.3f}  {threshold:9}  {lost:18}  {report.refused:.3f}")
    print(f"{folder}: calibrated, fingerprint {change.fingerprint}" if change else "nothing was changed")
    return 0


def describe_change(change: Change) -> str:
    """The counts of a change and the new fingerprint, for the terminal."""
    counts = {name: value for name, value in dataclasses.asdict(change).items() if isinstance(value, int) and value}
    summary = ", ".join(f"{value} {name}" for name, value in counts.items()) or "no change"
    return f"{summary}, fingerprint {change.fingerprint}"


def _print_change(folder: Path, change: Change) -> int:
    print(f"{folder}: {describe_change(change)}")
    return 0


def read_words(words: list[str]) -> list[str]:
    """Arguments, with - replaced by the lines of standard input."""
    lines: list[str] = []
    for word in words:
        lines.extend([line.rstrip("\r\n") for line in sys.stdin] if word == "-" else [word])
    return lines


def _read_pairs(source: Path) -> Iterator[tuple[str, list[str]]]:
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
