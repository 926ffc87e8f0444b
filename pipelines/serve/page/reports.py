"""report.html of the runs that the config names. Requests contain names, never paths."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping
from pathlib import Path

from pipelines.serve.errors import Refusal
from pipelines.serve.page.schemas import ReportOut

FILE = "report.html"
HEAD_BYTES = 262_144
"""Bytes that are searched for a report's headline, which follows its style."""
MAX_BYTES = 50_000_000
_TITLE, _HEADLINE = re.compile(r"<title>(.*?)</title>", re.S), re.compile(r"<h1[^>]*>(.*?)</h1>", re.S)


def list_reports(reports: Mapping[str, str]) -> list[ReportOut]:
    """All reports, in the config's order."""
    return [_describe(name, Path(folder).expanduser() / FILE) for name, folder in reports.items()]


def read_report(reports: Mapping[str, str], name: str) -> bytes:
    """One report."""
    if name not in reports:
        raise Refusal(404, "not_found", "there is no report of this name")
    path = Path(reports[name]).expanduser() / FILE
    try:
        if path.is_file() and path.stat().st_size <= MAX_BYTES:
            return path.read_bytes()
    except OSError:
        pass  # answered like a missing report: its path is not for callers
    raise Refusal(404, "not_found", "this run has no report yet")


def _describe(name: str, path: Path) -> ReportOut:
    try:
        with path.open("rb") as stream:
            head = stream.read(HEAD_BYTES).decode("utf-8", "replace")
        written = path.stat().st_mtime
    except OSError:
        return ReportOut(name=name, title="", headline="", written=None)
    return ReportOut(name=name, title=_text(_TITLE, head), headline=_text(_HEADLINE, head), written=written)


def _text(pattern: re.Pattern[str], head: str) -> str:
    match = pattern.search(head)
    return html.unescape(re.sub(r"<[^>]*>", "", match[1])).strip()[:300] if match else ""
