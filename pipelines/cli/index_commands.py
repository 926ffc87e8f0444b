"""`rewrite-index`: one function a subcommand, each returning its exit code."""

from __future__ import annotations

import argparse
import dataclasses
import json
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipelines import config as configs
from pipelines.context import make_context
from pipelines.index.build import IndexConfig, build_index, read_tools
from pipelines.index.training_summary import learned
from pipelines.search import ToolSearch
from retrievers.errors import BadInput
from retrievers.index import Change, Index, verify
from retrievers.index import add as add_tools
from retrievers.index import manifest as manifests
from retrievers.index import remove as remove_tools
from retrievers.types import Ranking


def build(arguments: argparse.Namespace) -> int:
    config = configs.load_from_args(arguments, IndexConfig)
    if config is None:
        return 0
    started = time.monotonic()
    change = build_index(config, make_context(arguments.device, sys.stderr.isatty()), arguments.wait, arguments.resume)
    say(
        f"{config.index}: {change.added} tools, {', '.join(config.retrievers)}, "
        f"fingerprint {change.fingerprint}, {time.monotonic() - started:.1f} s"
    )
    for line in learned(Path(config.index)):
        say(line)
    return 0


def add(arguments: argparse.Namespace) -> int:
    tools = read_tools(tuple(arguments.catalogue), arguments.format)
    context = make_context(arguments.device, sys.stderr.isatty())
    return tell_change(arguments.index, add_tools(arguments.index, tools, context, arguments.wait))


def remove(arguments: argparse.Namespace) -> int:
    ids = [line for line in _lines(arguments.ids) if line.strip()]
    return tell_change(
        arguments.index, remove_tools(arguments.index, ids, make_context(arguments.device), arguments.wait)
    )


def tell_change(folder: Path, change: Change) -> int:
    """Says what a writer did."""
    counts = {name: value for name, value in dataclasses.asdict(change).items() if isinstance(value, int) and value}
    told = ", ".join(f"{value} {name}" for name, value in counts.items()) or "nothing to do"
    say(f"{folder}: {told}, fingerprint {change.fingerprint}")
    return 0


def info(arguments: argparse.Namespace) -> int:
    manifest, fingerprint = manifests.read(arguments.index)
    entries = {entry.file: entry.bytes for entry in manifest.entries()}
    facts: dict[str, Any] = {
        "index": str(arguments.index),
        "fingerprint": fingerprint,
        "tools": manifest.live(),
        "removed": sum(len(segment.dead) for segment in manifest.segments),
        "segments": len(manifest.segments),
        "bytes": sum(entries.values()),
        "text": list(manifest.text),
        "retrievers": {name: {**part.settings, **part.identity} for name, part in manifest.retrievers.items()},
    }
    if arguments.json:
        say(json.dumps(facts, indent=2))
        return 0
    for key, value in facts.items():
        if key == "retrievers":
            for name, settings in value.items():
                say(f"  {name}: " + ", ".join(f"{k}={v}" for k, v in settings.items()))
        else:
            say(f"{key}: {', '.join(value) if isinstance(value, list) else value}")
    return 0


def verify_index(arguments: argparse.Namespace) -> int:
    complaints = verify(arguments.index)
    for complaint in complaints:
        print(f"rewrite-index: {complaint}", file=sys.stderr)
    if complaints:
        print("rewrite-index: the index is damaged; build it again", file=sys.stderr)
        return 1
    say(f"{arguments.index}: whole")
    return 0


def lint_catalogue(arguments: argparse.Namespace) -> int:
    from retrievers.lint import lint, summary

    folder = Path(arguments.source)
    if (folder / manifests.NAME).exists():
        tools = list(Index(folder, make_context()).tools.values())
    else:
        tools = read_tools((arguments.source,), arguments.format)
    findings = lint(tools)
    if arguments.json:
        say(json.dumps([dataclasses.asdict(finding) for finding in findings], ensure_ascii=False, indent=1))
        return 0
    for check, count in summary(findings).items():
        say(f"{check}: {count}")
        shown = [finding for finding in findings if finding.check == check]
        for finding in shown[: arguments.most or None]:
            say(f"  {finding.severity}: {finding.message}")
        if arguments.most and count > arguments.most:
            say(f"  … {count - arguments.most} more (--most 0 shows all)")
    say(f"{len(tools)} tools, {len(findings)} findings")
    return 0


def search(arguments: argparse.Namespace) -> int:
    if arguments.k < 1:
        raise BadInput(f"-k must be at least 1, not {arguments.k}")
    index = Index(arguments.index, make_context(arguments.device, engine=arguments.engine))
    utterances = _lines(arguments.text)
    names = arguments.retriever or index.names
    searches = {name: ToolSearch(index, name) for name in names}
    found = {name: search.search(utterances, arguments.k, detect=False) for name, search in searches.items()}
    told = {name: search.detect(utterances) for name, search in searches.items() if search.has_detector}
    for place, utterance in enumerate(utterances):
        answers = {name: rankings[place] for name, rankings in found.items()}
        verdicts = {name: each for name, many in told.items() if (each := many[place]) is not None}
        if arguments.json:
            say(
                json.dumps(
                    {
                        "query": utterance,
                        "fingerprint": index.fingerprint,
                        "tools": {name: [hit._asdict() for hit in ranking] for name, ranking in answers.items()},
                        "detection": {name: dataclasses.asdict(verdict) for name, verdict in verdicts.items()},
                    },
                    ensure_ascii=False,
                )
            )
        else:
            _table(utterance, answers, arguments.k)
            for name, verdict in verdicts.items():
                word = "a tool" if verdict.needs_tool else "no tool"
                say(f"   {name}: needs {word} ({verdict.probability:.2f}, threshold {verdict.threshold:.2f})")
    return 0


def _table(utterance: str, answers: dict[str, Ranking], k: int) -> None:
    """The retrievers' answers side by side, as wide as the terminal."""
    width = max(16, (shutil.get_terminal_size((120, 24)).columns - 3) // len(answers) - 2)
    say(f"\n{utterance}")
    say("   " + "  ".join(name.ljust(width) for name in answers).rstrip())
    for place in range(min(k, max(map(len, answers.values())))):
        cells = [_cell(ranking, place, width) for ranking in answers.values()]
        say(f"{place + 1:2} " + "  ".join(cells).rstrip())
    if not any(map(len, answers.values())):
        say("   nothing found")


def _cell(ranking: Ranking, place: int, width: int) -> str:
    if place >= len(ranking):
        return " " * width
    name, score = ranking.ids[place], f"{ranking.scores[place]:.3g}"
    room = width - len(score) - 1
    return f"{name if len(name) <= room else name[: room - 1] + '…'} {score}".ljust(width)


def _lines(words: Sequence[str]) -> list[str]:
    """Arguments, with - replaced by the lines of standard input."""
    found: list[str] = []
    for word in words:
        found.extend([line.rstrip("\r\n") for line in sys.stdin] if word == "-" else [word])
    return found


def say(text: str) -> None:
    print(text)
