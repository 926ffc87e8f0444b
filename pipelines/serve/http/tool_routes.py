"""Routes for the live catalogue. When a change is answered, it is on disk and searches find it."""

from __future__ import annotations

import asyncio
import json
from bisect import bisect_right
from collections.abc import Sequence
from typing import Annotated

from fastapi import Path, Query, Response

from pipelines.serve.catalogue.admission import AdmissionResult
from pipelines.serve.catalogue.fetch import fetch_tools
from pipelines.serve.catalogue.live_index import Snapshot
from pipelines.serve.catalogue.quarantine import QuarantinedTool
from pipelines.serve.errors import Refusal
from pipelines.serve.formats.tool_bodies import tool_out
from pipelines.serve.http.dependencies import (
    BODY,
    CallerDep,
    GatewayDep,
    charge,
    describe_models,
    errors,
    make_router,
    reply,
)
from pipelines.serve.results import may_find_in
from pipelines.serve.schemas import tools as schemas
from pipelines.serve.schemas.server import ModelsResponse
from pipelines.serve.settings import McpSource
from retrievers.index import Change
from retrievers.lint.limits import MAX_LABEL, complaint, listed_sentences
from retrievers.types import Parameter, Tool

router = make_router("tools")
admin = make_router("admin")
ToolId = Annotated[str, Path(min_length=1, max_length=MAX_LABEL, description="A tool's id; may contain slashes.")]
Label = Annotated[str | None, Query(max_length=512)]
MAX_TEXTS = 5_000
"""Tools whose JSON is kept for further pages."""


@router.get("/v1/tools", response_model=schemas.ToolPage, responses=errors(422))
async def list_tools(
    gateway: GatewayDep,
    caller: CallerDep,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    after: Annotated[str, Query(max_length=512)] = "",
    provider: Label = None,
    category: Label = None,
    contains: Label = None,
) -> Response:
    """List tools by id, one page at a time; `contains` filters by a part of id or name."""
    snapshot = gateway.catalogue.current
    charge(gateway, caller, "search", gateway.service.estimate([""], limit, "mcp", False))

    def make_page() -> bytes:
        ids = snapshot.ids
        if not caller.access.finds_all:
            ids = list(filter(may_find_in(snapshot, caller.access), ids))
        if provider is not None or category is not None:
            labels, wanted = snapshot.labels, [label and label.casefold() for label in (provider, category)]
            ids = [
                tool for tool in ids if all(want in (None, has) for want, has in zip(wanted, labels[tool], strict=True))
            ]
        if contains:
            part, names = contains.casefold(), dict(snapshot.index.tools.names())
            ids = [tool for tool in ids if part in tool.casefold() or part in names[tool].casefold()]
        start = bisect_right(ids, after)
        page = ids[start : start + limit]
        following = page[-1] if start + limit < len(ids) else None
        frame = schemas.ToolPage(tools=[], next=following, total=len(ids), fingerprint=snapshot.index.fingerprint)
        first, last = frame.model_dump_json(by_alias=True).split("[]", 1)
        return f"{first}[{','.join(tool_text(snapshot, tool) for tool in page)}]{last}".encode()

    return Response(await gateway.service.answers.run(make_page), media_type="application/json")


@router.get("/v1/tools/{tool_id:path}", response_model=schemas.ToolOut, responses=errors(404, 422))
async def get_tool(tool_id: ToolId, gateway: GatewayDep, caller: CallerDep) -> Response:
    """Get one tool."""
    caller.charge("search")
    tools = gateway.catalogue.current.index.tools
    if tool_id not in tools or not caller.may_find(tools[tool_id]):
        raise Refusal(404, "not_found", "there is no tool with this id")
    return reply(tool_out(tools[tool_id]))


@router.put("/v1/tools", response_model=schemas.ChangeOut, responses=errors(*BODY, 503, 507))
async def put_tools(body: schemas.ToolsBody, gateway: GatewayDep, caller: CallerDep) -> Response:
    """Add or replace several tools in one change; much faster than one by one."""
    if len(body.tools) > gateway.config.limits.tools:
        raise Refusal(422, "invalid", f"a change has at most {gateway.config.limits.tools} tools")
    caller.charge("write", len(body.tools))
    if len({tool.id for tool in body.tools}) < len(body.tools):
        raise Refusal(422, "invalid", "an id is used twice")
    return reply(admission_out(await gateway.admission.put(_make_tools(body, gateway))))


def _make_tools(body: schemas.ToolsBody, gateway: GatewayDep) -> list[Tool]:
    known = gateway.catalogue.current.index.tools  # not of the route, which would keep an old version in memory
    return [make_tool(tool.id, tool, known.get(tool.id)) for tool in body.tools]


@router.put("/v1/tools/{tool_id:path}", response_model=schemas.ChangeOut, responses=errors(*BODY, 404, 503, 507))
async def put_tool(tool_id: ToolId, body: schemas.ToolBody, gateway: GatewayDep, caller: CallerDep) -> Response:
    """Add or replace a tool."""
    caller.charge("write")
    known = gateway.catalogue.current.index.tools.get(tool_id)
    return reply(admission_out(await gateway.admission.put([make_tool(tool_id, body, known)])))


@router.delete("/v1/tools/{tool_id:path}", response_model=schemas.ChangeOut, responses=errors(404, 422, 503, 507))
async def delete_tool(tool_id: ToolId, gateway: GatewayDep, caller: CallerDep) -> Response:
    """Delete a tool from catalogue and quarantine. The last tool stays: a catalogue is never empty."""
    caller.charge("write")
    if tool_id not in gateway.catalogue.current.index.tools and tool_id not in gateway.admission.quarantine.tools:
        raise Refusal(404, "not_found", "there is no tool with this id")
    return reply(change_out(await gateway.admission.delete(tool_id)))


@admin.post("/v1/admin/import", response_model=schemas.ChangeOut, responses=errors(*BODY, 503, 507))
async def import_catalogue(body: schemas.ImportRequest, gateway: GatewayDep, caller: CallerDep) -> Response:
    """Fetch a catalogue from a host that the config allows, and add its tools; wrong entries are skipped."""
    caller.charge("admin")
    skipped: list[str] = []
    if body.format == "mcp-server":
        from pipelines.serve.catalogue.mcp_client import fetch_mcp_tools  # loads the MCP library

        tools = await fetch_mcp_tools(McpSource("", body.url), gateway.config.imports)
    else:
        tools, skipped = await asyncio.to_thread(fetch_tools, body.url, body.format, gateway.config.imports)
    result = await gateway.admission.put(tools)
    return reply(admission_out(result).model_copy(update={"skipped": [*skipped, *listed_sentences(result.refused)]}))


@admin.post("/v1/admin/reload", response_model=ModelsResponse, responses=errors())
async def reload(gateway: GatewayDep, caller: CallerDep) -> Response:
    """Look for newer versions of index and rewriter now."""
    caller.charge("admin")
    await gateway.refresh()
    return reply(describe_models(gateway, caller))


def make_tool(tool_id: str, body: schemas.ToolBody, known: Tool | None = None) -> Tool:
    """The tool of a request body; a body without `call` keeps that of the known tool."""
    parameters = tuple(Parameter(**dict(parameter)) for parameter in body.parameters)
    schema, call = (
        "" if value is None else json.dumps(value, ensure_ascii=False) for value in (body.arguments, body.call)
    )
    if known is not None and "call" not in body.model_fields_set:
        call = known.call
    tool = Tool(tool_id, body.name, body.description, parameters, body.category, body.provider, schema, call)
    if why := complaint(tool):
        raise Refusal(422, "invalid", f"the tool cannot be added: {why}")
    return tool


def tool_text(snapshot: Snapshot, tool: str) -> str:
    """A tool as JSON, kept with the version of the catalogue: a caller who lists without a pause costs little."""
    text = snapshot.tool_texts.get(tool)
    if text is None:
        text = tool_out(snapshot.index.tools[tool]).model_dump_json(by_alias=True)
        if len(snapshot.tool_texts) < MAX_TEXTS:
            snapshot.tool_texts[tool] = text
    return text


def admission_out(result: AdmissionResult) -> schemas.ChangeOut:
    """The response body of a change, with the tools that failed checks."""

    def flagged(items: Sequence[QuarantinedTool]) -> list[schemas.FlaggedTool]:
        return [
            schemas.FlaggedTool(id=item.tool.id, flags=list(item.flags), reasons=list(item.reasons)) for item in items
        ]

    update = {"held": flagged(result.quarantined), "flagged": flagged(result.flagged)}
    return change_out(result.change).model_copy(update=update)


def change_out(change: Change) -> schemas.ChangeOut:
    """The response body of a change."""
    return schemas.ChangeOut.model_validate(change, from_attributes=True)
