"""The live catalogue by HTTP. A change is on the disk, and can be searched for, when it is answered."""

from __future__ import annotations

import asyncio
import json
import re
from bisect import bisect_right
from typing import Annotated

from fastapi import APIRouter, Path, Query, Response

from pipelines.serve.catalogue.admission import Admitted
from pipelines.serve.catalogue.fetch import fetch_tools
from pipelines.serve.catalogue.live_index import Snapshot
from pipelines.serve.catalogue.mcp_client import fetch_mcp_tools
from pipelines.serve.errors import Refusal
from pipelines.serve.http.routes import BODY, Parts, Who, allow, errors, models, reply
from pipelines.serve.mcp.settings import McpSource
from pipelines.serve.schemas import search as wire
from pipelines.serve.schemas import state as state_wire
from retrievers.index import Change
from retrievers.types import Parameter, Tool

router = APIRouter(tags=["tools"])
admin = APIRouter(tags=["admin"])
ToolId = Annotated[str, Path(min_length=1, max_length=512, description="A tool's id; it may hold slashes.")]
Label = Annotated[str | None, Query(max_length=512)]
_UNFIT = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]|^\s|\s$")


@router.get("/v1/tools", response_model=wire.ToolPage, responses=errors(422))
async def list_tools(
    parts: Parts,
    who: Who,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    after: Annotated[str, Query(max_length=512)] = "",
    provider: Label = None,
    category: Label = None,
    contains: Label = None,
) -> Response:
    """Tools in the order of their ids, a page at a time; `contains` is looked for in ids and names."""
    allow(who, "search")
    snapshot = parts.catalogue.current
    ids = await asyncio.to_thread(lambda: snapshot.ids)
    if provider is not None or category is not None:
        labels = await asyncio.to_thread(lambda: snapshot.labels)
        wanted = [None if each is None else each.casefold() for each in (provider, category)]
        ids = [tool for tool in ids if all(want in (None, has) for want, has in zip(wanted, labels[tool], strict=True))]
    if contains:
        named = await asyncio.to_thread(_named, snapshot, contains.casefold())
        ids = [tool for tool in ids if tool in named]
    start = bisect_right(ids, after)
    chosen = ids[start : start + limit]
    return reply(
        wire.ToolPage(
            tools=[shown(snapshot.index.tools[tool]) for tool in chosen],
            next=chosen[-1] if start + limit < len(ids) else None,
            total=len(ids),
            fingerprint=snapshot.index.fingerprint,
        )
    )


@router.get("/v1/tools/{tool_id:path}", response_model=wire.ToolOut, responses=errors(404, 422))
async def get_tool(tool_id: ToolId, parts: Parts, who: Who) -> Response:
    """One tool."""
    allow(who, "search")
    tools = parts.catalogue.current.index.tools
    if tool_id not in tools:
        raise Refusal(404, "not_found", "there is no tool with this id")
    return reply(shown(tools[tool_id]))


@router.put("/v1/tools", response_model=wire.ChangeOut, responses=errors(*BODY, 503, 507))
async def put_tools(body: wire.ToolsBody, parts: Parts, who: Who) -> Response:
    """Adds or replaces several tools in one change: much cheaper than one at a time."""
    if len(body.tools) > parts.config.limits.tools:
        raise Refusal(422, "invalid", f"a change has at most {parts.config.limits.tools} tools")
    allow(who, "write", len(body.tools))
    if len({tool.id for tool in body.tools}) < len(body.tools):
        raise Refusal(422, "invalid", "an id stands there twice")
    return reply(admitted(await parts.admission.put([made(tool.id, tool) for tool in body.tools])))


@router.put("/v1/tools/{tool_id:path}", response_model=wire.ChangeOut, responses=errors(*BODY, 404, 503, 507))
async def put_tool(tool_id: ToolId, body: wire.ToolBody, parts: Parts, who: Who) -> Response:
    """Adds a tool, or replaces it."""
    allow(who, "write")
    return reply(admitted(await parts.admission.put([made(tool_id, body)])))


@router.delete("/v1/tools/{tool_id:path}", response_model=wire.ChangeOut, responses=errors(404, 422, 503, 507))
async def delete_tool(tool_id: ToolId, parts: Parts, who: Who) -> Response:
    """Takes a tool out, and what waits for approval in its name. The last one stays: a catalogue is never empty."""
    allow(who, "write")
    if tool_id not in parts.catalogue.current.index.tools and tool_id not in parts.admission.held.all:
        raise Refusal(404, "not_found", "there is no tool with this id")
    return reply(changed(await parts.admission.delete(tool_id)))


@admin.post("/v1/admin/import", response_model=wire.ChangeOut, responses=errors(*BODY, 503, 507))
async def import_catalogue(body: wire.ImportRequest, parts: Parts, who: Who) -> Response:
    """Fetches a catalogue from a host that the config allows, and adds its tools."""
    allow(who, "admin")
    if body.format == "mcp-server":
        tools = await fetch_mcp_tools(McpSource("", body.url), parts.config.imports)
    else:
        tools = await asyncio.to_thread(fetch_tools, body.url, body.format, parts.config.imports)
    return reply(admitted(await parts.admission.put(tools)))


@admin.post("/v1/admin/reload", response_model=state_wire.ModelsResponse, responses=errors())
async def reload(parts: Parts, who: Who) -> Response:
    """Looks for newer versions of index and rewriter now rather than in a moment."""
    allow(who, "admin")
    await parts.refresh()
    return reply(models(parts))


def _named(snapshot: Snapshot, part: str) -> set[str]:
    return {tool for tool, name in snapshot.index.tools.names() if part in tool.casefold() or part in name.casefold()}


def made(tool_id: str, body: wire.ToolBody) -> Tool:
    """A tool out of a request."""
    if _UNFIT.search(tool_id) or _UNFIT.search(body.name):
        raise Refusal(422, "invalid", "ids and names are one line without control characters and spaces around it")
    parameters = tuple(Parameter(one.name, one.type, one.description, one.required) for one in body.parameters)
    schema = "" if body.arguments is None else json.dumps(body.arguments, ensure_ascii=False)
    return Tool(tool_id, body.name, body.description, parameters, body.category, body.provider, schema)


def shown(tool: Tool) -> wire.ToolOut:
    """A tool on the wire. A schema that is no JSON, which old catalogues may hold, goes as text."""
    try:
        schema = json.loads(tool.schema) if tool.schema else None
    except ValueError:
        schema = tool.schema
    parameters = [
        wire.ToolParameter.model_construct(
            name=one.name, type=one.type, description=one.description, required=one.required
        )
        for one in tool.parameters
    ]
    return wire.ToolOut.model_construct(
        id=tool.id,
        name=tool.name,
        description=tool.description,
        parameters=parameters,
        category=tool.category,
        provider=tool.provider,
        arguments=schema,
    )


def admitted(found: Admitted) -> wire.ChangeOut:
    """A change on the wire, with what has to wait."""
    told = [
        [wire.HeldTool(id=each.tool.id, flags=list(each.flags), reasons=list(each.reasons)) for each in some]
        for some in (found.held, found.flagged)
    ]
    return changed(found.change).model_copy(update={"held": told[0], "flagged": told[1]})


def changed(change: Change) -> wire.ChangeOut:
    """A change on the wire."""
    return wire.ChangeOut(
        added=change.added,
        updated=change.updated,
        unchanged=change.unchanged,
        removed=change.removed,
        fingerprint=change.fingerprint,
    )
