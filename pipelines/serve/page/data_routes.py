"""Routes that only the page uses: the server's state, labels, reading a pasted catalogue, reports."""

from __future__ import annotations

import asyncio
import html
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated
from weakref import WeakKeyDictionary

from fastapi import Path as PathParameter
from fastapi import Response

from pipelines.index.defaults import default_examples
from pipelines.serve.bounds.costs import BYTES_PER_UNIT
from pipelines.serve.catalogue.live_index import Snapshot
from pipelines.serve.catalogue.reading import CatalogueText
from pipelines.serve.errors import Refusal
from pipelines.serve.http.dependencies import (
    BODY,
    CallerDep,
    GatewayDep,
    ReplyInPieces,
    describe_models,
    errors,
    make_router,
    reply,
)
from pipelines.serve.keys import Caller
from pipelines.serve.page import schemas
from pipelines.serve.page.assets import REPORT_POLICY
from pipelines.serve.schemas.tools import FlaggedTool, ReadResponse
from retrievers.base import adds_votes
from retrievers.lint.finding import Finding
from retrievers.lint.hidden import hidden

MAX_LABELS = 500
MAX_FINDINGS = 200
REPORT_FILE = "report.html"
HEAD_BYTES = 262_144
"""Bytes that are searched for a report's headline, which follows its style."""
MAX_REPORT_BYTES = 50_000_000
PIECE_BYTES = 65_536
"""Of a large answer, sent at once."""
_TITLE, _HEADLINE = re.compile(r"<title>(.*?)</title>", re.S), re.compile(r"<h1[^>]*>(.*?)</h1>", re.S)
router = make_router("page")
_findings: WeakKeyDictionary[Snapshot, list[Finding]] = WeakKeyDictionary()
_labels: WeakKeyDictionary[Snapshot, schemas.LabelsResponse] = WeakKeyDictionary()


@router.get("/v1/about", response_model=schemas.AboutResponse, responses=errors())
async def about(gateway: GatewayDep, caller: CallerDep) -> Response:
    """The server's models and limits, and the caller's scopes. Any key will do."""
    config, rewriter = gateway.config, gateway.rewriter
    body = schemas.AboutResponse(
        caller=caller.name,
        scopes=sorted(caller.scopes),
        tools=len(gateway.catalogue.current.index.tools),
        models=describe_models(gateway, caller).models,
        asks=rewriter is not None and rewriter.dispatcher.fusion.raw < 1,
        detects=gateway.catalogue.current.search.has_detector,
        votes=adds_votes(gateway.catalogue.current.search.retriever),
        examples=list(config.examples or default_examples(config.index)),
        deadline_ms=config.deadline_ms,
        max_deadline_ms=config.max_deadline_ms,
        limits=schemas.LimitsOut.model_validate(config.limits, from_attributes=True),
        reports=len(config.reports),
    )
    return reply(body)


@router.get("/v1/labels", response_model=schemas.LabelsResponse, responses=errors())
async def list_labels(gateway: GatewayDep, caller: CallerDep) -> Response:
    """List providers and categories."""
    caller.charge("search")
    snapshot = gateway.catalogue.current
    if not caller.access.finds_all:
        return reply(await asyncio.to_thread(_count_labels, snapshot, caller))
    if snapshot not in _labels:
        _labels[snapshot] = await asyncio.to_thread(_count_labels, snapshot)
    return reply(_labels[snapshot])


@router.post("/v1/catalogue/read", response_model=ReadResponse, responses=errors(*BODY, 503))
async def read_catalogue(body: schemas.ReadRequest, gateway: GatewayDep, caller: CallerDep) -> Response:
    """Read the tools of a catalogue that is sent as text, for `PUT /v1/tools`; changes nothing."""
    caller.charge("write", 1 + len(body.document) // BYTES_PER_UNIT)
    limits = gateway.config.limits
    text = CatalogueText(body.document, body.format, body.provider, limits.answer_bytes)
    async with gateway.reading.turn(caller.turn, limits.queue_seconds):
        # The tools are looked up in the thread: the route would keep an old version of them in memory.
        data = await asyncio.to_thread(lambda: gateway.reader.read(text, gateway.catalogue.current.index.tools))
    return ReplyInPieces([data[start : start + PIECE_BYTES] for start in range(0, len(data), PIECE_BYTES)])


@router.get("/v1/findings", response_model=schemas.FindingsResponse, responses=errors())
async def list_findings(gateway: GatewayDep, caller: CallerDep) -> Response:
    """List tools that failed a check, however they got into the catalogue."""
    caller.charge("write")
    snapshot, admission = gateway.catalogue.current, gateway.admission
    if snapshot not in _findings:
        _findings[snapshot] = await asyncio.to_thread(lambda: list(hidden(list(snapshot.index.tools.values()))))
    held = [
        FlaggedTool(id=item.tool.id, flags=list(item.flags), reasons=list(item.reasons))
        for item in admission.quarantine.tools.values()
    ]
    flagged = [
        FlaggedTool(id=finding.tool_ids[0], flags=[finding.check], reasons=[finding.message])
        for finding in _findings[snapshot]
    ]
    refused = [sentence for sentences in admission.refused.values() for sentence in sentences]
    body = schemas.FindingsResponse(
        held=held[:MAX_FINDINGS],
        flagged=flagged[:MAX_FINDINGS],
        refused=refused[:MAX_FINDINGS],
        total=len(held) + len(flagged) + len(refused),
    )
    return reply(body)


@router.get("/v1/reports", response_model=schemas.ReportsResponse, responses=errors())
async def list_reports(gateway: GatewayDep, caller: CallerDep) -> Response:
    """List the reports that the config names."""
    caller.charge("search")
    paths = {name: Path(folder).expanduser() / REPORT_FILE for name, folder in gateway.config.reports.items()}
    reports = await asyncio.to_thread(lambda: [_describe_report(name, path) for name, path in paths.items()])
    return reply(schemas.ReportsResponse(reports=reports))


@router.get(
    "/v1/reports/{name}",
    response_class=Response,
    responses={**errors(404, 422), 200: {"content": {"text/html": {"schema": {"type": "string"}}}}},
)
async def get_report(
    name: Annotated[str, PathParameter(min_length=1, max_length=64, description="A name of the list.")],
    gateway: GatewayDep,
    caller: CallerDep,
) -> Response:
    """A run's report as one HTML page; its policy allows only its own script, and no network."""
    caller.charge("search")
    data = await asyncio.to_thread(_read_report, gateway.config.reports, name)
    headers = {"Content-Security-Policy": REPORT_POLICY, "Cross-Origin-Resource-Policy": "same-origin"}
    return Response(data, headers=headers, media_type="text/html; charset=utf-8")


def _count_labels(snapshot: Snapshot, caller: Caller | None = None) -> schemas.LabelsResponse:
    """Labels of all tools, or of those that a caller may find."""
    tools = [tool for tool in snapshot.index.tools.values() if caller is None or caller.may_find(tool)]
    counts = Counter(tool.provider for tool in tools), Counter(tool.category for tool in tools)
    providers, categories = (
        [
            schemas.LabelOut(label=label, tools=number)
            for label, number in sorted(count.items(), key=lambda item: (-item[1], item[0]))
            if label
        ][:MAX_LABELS]
        for count in counts
    )
    return schemas.LabelsResponse(providers=providers, categories=categories)


def _read_report(reports: Mapping[str, str], name: str) -> bytes:
    if name not in reports:
        raise Refusal(404, "not_found", "there is no report of this name")
    path = Path(reports[name]).expanduser() / REPORT_FILE
    try:
        if path.is_file() and path.stat().st_size <= MAX_REPORT_BYTES:
            return path.read_bytes()
    except OSError:
        pass  # answered like a missing report: its path is not for callers
    raise Refusal(404, "not_found", "this run has no report yet")


def _describe_report(name: str, path: Path) -> schemas.ReportOut:
    try:
        with path.open("rb") as stream:
            head = stream.read(HEAD_BYTES).decode("utf-8", "replace")
        written = path.stat().st_mtime
    except OSError:
        return schemas.ReportOut(name=name, title="", headline="", written=None)
    return schemas.ReportOut(name=name, title=_text(_TITLE, head), headline=_text(_HEADLINE, head), written=written)


def _text(pattern: re.Pattern[str], head: str) -> str:
    match = pattern.search(head)
    return html.unescape(re.sub(r"<[^>]*>", "", match[1])).strip()[:300] if match else ""
