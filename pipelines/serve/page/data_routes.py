"""What the page asks beside searching: what is here, labels to choose from, a pasted catalogue read, reports."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Annotated
from weakref import WeakKeyDictionary

from fastapi import APIRouter, Path, Response

from pipelines.serve.catalogue.fetch import read_tools
from pipelines.serve.catalogue.live_index import Snapshot
from pipelines.serve.http.routes import BODY, Parts, Who, allow, errors, models, reply
from pipelines.serve.http.tool_routes import shown
from pipelines.serve.page import reports
from pipelines.serve.page import schemas as wire
from pipelines.serve.page.assets import REPORT_POLICY
from retrievers.types import Tool

MOST_LABELS = 500
router = APIRouter(tags=["page"])
_labels: WeakKeyDictionary[Snapshot, wire.LabelsResponse] = WeakKeyDictionary()


@router.get("/v1/about", response_model=wire.AboutResponse, responses=errors())
async def about(parts: Parts, who: Who) -> Response:
    """What answers here, and what this caller may do. Any key will do."""
    config, loaded = parts.config, parts.models.rewriting.loaded if parts.models else None
    found = wire.AboutResponse(
        caller=who.name,
        scopes=sorted(who.scopes),
        tools=len(parts.catalogue.current.index.tools),
        models=models(parts).models,
        asks=loaded.fusion.raw < 1 if loaded else parts.models is not None,
        deadline_ms=config.deadline_ms,
        longest_deadline_ms=config.longest_deadline_ms,
        limits=wire.Limits(
            bytes=config.limits.bytes,
            characters=config.limits.characters,
            places=config.limits.places,
            tools=config.limits.tools,
        ),
        reports=len(config.reports),
    )
    return reply(found)


@router.get("/v1/labels", response_model=wire.LabelsResponse, responses=errors())
async def list_labels(parts: Parts, who: Who) -> Response:
    """Providers and categories to choose from."""
    allow(who, "search")
    snapshot = parts.catalogue.current
    if snapshot not in _labels:
        _labels[snapshot] = await asyncio.to_thread(_counted, snapshot)
    return reply(_labels[snapshot])


@router.post("/v1/catalogue/read", response_model=wire.ReadResponse, responses=errors(*BODY))
async def read_catalogue(body: wire.ReadRequest, parts: Parts, who: Who) -> Response:
    """The tools of a catalogue that is sent as text, for `PUT /v1/tools`; nothing is changed by reading."""
    allow(who, "write")
    document = body.document.encode("utf-8", "replace")
    found = await asyncio.to_thread(read_tools, document, body.format)
    if provider := body.provider.strip():
        found = [tool if tool.provider else _of(provider, tool) for tool in found]
    known = parts.catalogue.current.index.tools
    tools = [_read(tool, known.get(tool.id)) for tool in found]
    return reply(wire.ReadResponse.model_construct(tools=tools))


@router.get("/v1/reports", response_model=wire.ReportsResponse, responses=errors())
async def list_reports(parts: Parts, who: Who) -> Response:
    """The runs whose reports can be looked at."""
    allow(who, "search")
    return reply(wire.ReportsResponse(reports=await asyncio.to_thread(reports.listed, parts.config.reports)))


@router.get(
    "/v1/reports/{name}",
    response_class=Response,
    responses={**errors(404, 422), 200: {"content": {"text/html": {"schema": {"type": "string"}}}}},
)
async def get_report(
    name: Annotated[str, Path(min_length=1, max_length=64, description="As the list has it.")], parts: Parts, who: Who
) -> Response:
    """A run's report, one page of HTML; it may run its own script alone, and reach nothing."""
    allow(who, "search")
    data = await asyncio.to_thread(reports.read, parts.config.reports, name)
    headers = {"Content-Security-Policy": REPORT_POLICY, "Cross-Origin-Resource-Policy": "same-origin"}
    return Response(data, headers=headers, media_type="text/html; charset=utf-8")


def _counted(snapshot: Snapshot) -> wire.LabelsResponse:
    providers, categories = Counter[str](), Counter[str]()
    for tool in snapshot.index.tools.values():
        providers[tool.provider] += 1
        categories[tool.category] += 1
    return wire.LabelsResponse(providers=_most(providers), categories=_most(categories))


def _most(counted: Counter[str]) -> list[wire.Label]:
    order: Iterable[tuple[str, int]] = sorted(counted.items(), key=lambda each: (-each[1], each[0]))
    return [wire.Label(label=label, tools=tools) for label, tools in order if label][:MOST_LABELS]


def _of(provider: str, tool: Tool) -> Tool:
    """The tool as an MCP answer that names its server has it."""
    return replace(tool, id=f"{provider}/{tool.id}", provider=provider)


def _read(tool: Tool, known: Tool | None) -> wire.ReadTool:
    state = "new" if known is None else "same" if _alike(tool, known) else "changed"
    return wire.ReadTool.model_construct(**dict(shown(tool)), state=state)


def _alike(one: Tool, other: Tool) -> bool:
    """The same but for how their schemas are spaced."""
    return replace(one, schema="") == replace(other, schema="") and _value(one.schema) == _value(other.schema)


def _value(schema: str) -> object:
    try:
        return json.loads(schema) if schema else None
    except ValueError:
        return schema
