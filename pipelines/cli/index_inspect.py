"""`rewrite-index info`, `verify`, `lint` and `search`."""

from __future__ import annotations

import argparse
import dataclasses
import json
import shutil
import sys
from itertools import zip_longest
from pathlib import Path
from typing import Any

from pipelines.calibration import check_min_score
from pipelines.cli.index_change import providers_of, read_words
from pipelines.context import make_context
from pipelines.index.build import read_tools
from pipelines.index.defaults import AUTO, choose_retriever, index_folder
from pipelines.search import ToolSearch, ToolSearchResult
from pipelines.shipped import find_catalogue
from retrievers.errors import BadInput
from retrievers.index import Index, verify
from retrievers.index import manifest as manifests
from retrievers.types import Ranking

ALL = "all"
"""`--retriever` of `search`: every retriever of the index, side by side."""


def run_info(arguments: argparse.Namespace) -> int:
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
        "retrievers": {
            name: {**part.settings, **part.identity, **({"calibration": part.calibration} if part.calibration else {})}
            for name, part in manifest.retrievers.items()
        },
    }
    if arguments.json:
        print(json.dumps(facts, indent=2))
        return 0
    retrievers = facts.pop("retrievers")
    for key, value in facts.items():
        print(f"{key}: {', '.join(value) if isinstance(value, list) else value}")
    for name, settings in retrievers.items():
        print(f"  {name}: " + ", ".join(f"{key}={value}" for key, value in settings.items()))
    return 0


def run_verify(arguments: argparse.Namespace) -> int:
    complaints = verify(arguments.index)
    for complaint in complaints:
        print(f"rewrite-index: {complaint}", file=sys.stderr)
    if complaints:
        print("rewrite-index: the index is damaged; build it again", file=sys.stderr)
        return 1
    print(f"{arguments.index}: complete and undamaged")
    return 0


def run_lint(arguments: argparse.Namespace) -> int:
    from retrievers.lint import lint, summary

    folder = Path(arguments.source[0])
    if len(arguments.source) == 1 and (folder / manifests.NAME).exists():
        tools = list(Index(folder, make_context()).tools.values())
    else:
        sources = tuple(map(find_catalogue, arguments.source))
        tools = read_tools(sources, arguments.format, providers_of(sources, arguments.provider))
    findings = lint(tools)
    if arguments.json:
        print(json.dumps([dataclasses.asdict(finding) for finding in findings], ensure_ascii=False, indent=1))
        return 0
    for check, count in summary(findings).items():
        print(f"{check}: {count}")
        shown = [finding for finding in findings if finding.check == check]
        for finding in shown[: arguments.limit or None]:
            print(f"  {finding.severity}: {finding.message}")
        if arguments.limit and count > arguments.limit:
            print(f"  … {count - arguments.limit} more (--limit 0 shows all)")
    print(f"{len(tools)} tools, {len(findings)} findings")
    return 0


def run_search(arguments: argparse.Namespace) -> int:
    if arguments.k < 1:
        raise BadInput(f"-k must be at least 1, got {arguments.k}")
    index = Index(index_folder(str(arguments.index)), make_context(arguments.device, engine=arguments.engine))
    utterances = read_words(arguments.text)
    wanted = arguments.retriever or [AUTO]
    names = index.names if ALL in wanted else dict.fromkeys(choose_retriever(index, name) for name in wanted)
    searches = {name: ToolSearch(index, name) for name in names}
    if arguments.min_score is not None:
        check_min_score(arguments.min_score, "--min-score")
    results = {
        name: search.explain(utterances, arguments.k, detect=False, min_score=arguments.min_score)
        for name, search in searches.items()
    }
    detections = {name: search.detect(utterances) for name, search in searches.items() if search.has_detector}
    for row, utterance in enumerate(utterances):
        answers = {name: answers[row] for name, answers in results.items()}
        rankings = {name: answer.ranking for name, answer in answers.items()}
        detected = {name: verdict for name, verdicts in detections.items() if (verdict := verdicts[row]) is not None}
        if arguments.json:
            facts = {
                "query": utterance,
                "fingerprint": index.fingerprint,
                "tools": {name: _hits(answer) for name, answer in answers.items()},
                "detection": {name: dataclasses.asdict(verdict) for name, verdict in detected.items()},
            }
            empty = {name: answer.nothing_fits for name, answer in answers.items() if answer.nothing_fits}
            if empty:
                facts["nothing_fits"] = {name: dataclasses.asdict(reason) for name, reason in empty.items()}
            print(json.dumps(facts, ensure_ascii=False))
            continue
        _print_table(utterance, rankings, arguments.k)
        for name, answer in answers.items():
            if answer.nothing_fits:
                print(f"   {name}: {answer.nothing_fits}")
            elif arguments.min_score is not None and answer.relevance:
                print(f"   {name}: relevance {answer.relevance[0]:.2f}")
        for name, verdict in detected.items():
            word = "a tool" if verdict.needs_tool else "no tool"
            print(f"   {name}: needs {word} ({verdict.probability:.2f}, threshold {verdict.threshold:.2f})")
    return 0


def _hits(answer: ToolSearchResult) -> list[dict[str, Any]]:
    relevance = answer.relevance or [None] * len(answer.ranking)
    return [{**hit._asdict(), "relevance": value} for hit, value in zip(answer.ranking, relevance, strict=True)]


def _print_table(utterance: str, rankings: dict[str, Ranking], k: int) -> None:
    """Print the rankings side by side, or below each other where the terminal is too narrow for whole ids."""
    columns = [_column(name, ranking, k) for name, ranking in rankings.items()]
    fits = sum(len(column[0]) + 2 for column in columns) + 1 <= shutil.get_terminal_size((120, 24)).columns
    print(f"\n{utterance}")
    for group in [columns] if fits else [[column] for column in columns]:
        for rank, cells in enumerate(zip_longest(*group)):
            line = "  ".join(cell or " " * len(column[0]) for cell, column in zip(cells, group, strict=True))
            print(f"{rank or '':>2} {line}".rstrip())
    if not any(map(len, rankings.values())):
        print("   nothing found")


def _column(name: str, ranking: Ranking, k: int) -> list[str]:
    """Name of the retriever, then tools with scores, all as wide as the widest."""
    cells = [name, *(f"{tool} {score:.3g}" for tool, score in ranking.cut(k))]
    return [cell.ljust(max(map(len, cells))) for cell in cells]
