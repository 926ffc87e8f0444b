"""report.html of the runs that the config names. A request holds a name, which is looked up, and never a path."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping
from pathlib import Path

from pipelines.serve.errors import Refusal
from pipelines.serve.page.schemas import ReportOut

FILE = "report.html"
HEAD = 262_144
"""Bytes in which a report's headline stands, after its style."""
MOST = 50_000_000
_TITLE, _HEADLINE = re.compile(r"<title>(.*?)</title>", re.S), re.compile(r"<h1[^>]*>(.*?)</h1>", re.S)


def listed(reports: Mapping[str, str]) -> list[ReportOut]:
    """All of them, in the config's order."""
    return [_listed(name, Path(folder).expanduser() / FILE) for name, folder in reports.items()]


def read(reports: Mapping[str, str], name: str) -> bytes:
    """One of them, whole."""
    if name not in reports:
        raise Refusal(404, "not_found", "there is no report of this name")
    path = Path(reports[name]).expanduser() / FILE
    try:
        if path.is_file() and path.stat().st_size <= MOST:
            return path.read_bytes()
    except OSError:
        pass  # told like one that is not there: where it lies is nobody's business
    raise Refusal(404, "not_found", "this run has no report yet")


def _listed(name: str, path: Path) -> ReportOut:
    try:
        if not path.is_file():
            return ReportOut(name=name, title="", headline="", written=None)
        with path.open("rb") as stream:
            head = stream.read(HEAD).decode("utf-8", "replace")
        written = path.stat().st_mtime
    except OSError:
        return ReportOut(name=name, title="", headline="", written=None)
    return ReportOut(name=name, title=_said(_TITLE, head), headline=_said(_HEADLINE, head), written=written)


def _said(pattern: re.Pattern[str], head: str) -> str:
    found = pattern.search(head)
    return html.unescape(re.sub(r"<[^>]*>", "", found[1])).strip()[:300] if found else ""
