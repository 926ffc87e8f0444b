"""Tools that wait, for admins: seen, approved, thrown away."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Response

from pipelines.serve.http.routes import BODY, Parts, Who, allow, errors, reply
from pipelines.serve.http.tool_routes import changed, shown
from pipelines.serve.schemas import held as held_wire
from pipelines.serve.schemas import search as wire

admin = APIRouter(tags=["admin"])


@admin.get("/v1/admin/held", response_model=held_wire.WaitingPage, responses=errors(422))
async def list_held(parts: Parts, who: Who, limit: Annotated[int, Query(ge=1, le=500)] = 100) -> Response:
    """Tools that wait, with what the catalogue has in their place."""
    allow(who, "admin")
    held, tools = list(parts.admission.held.all.values()), parts.catalogue.current.index.tools
    page = [
        held_wire.WaitingTool(
            id=each.tool.id,
            flags=list(each.flags),
            reasons=list(each.reasons),
            tool=shown(each.tool),
            now=shown(tools[each.tool.id]) if each.tool.id in tools else None,
        )
        for each in held[:limit]
    ]
    return reply(held_wire.WaitingPage(tools=page, total=len(held)))


@admin.post("/v1/admin/held/approve", response_model=wire.ChangeOut, responses=errors(*BODY, 404, 503, 507))
async def approve_held(body: held_wire.HeldRequest, parts: Parts, who: Who) -> Response:
    """Lets tools in. They can be searched for when this is answered."""
    allow(who, "admin")
    return reply(changed(await parts.admission.approve(body.ids)))


@admin.post("/v1/admin/held/reject", response_model=held_wire.RejectedResponse, responses=errors(*BODY))
async def reject_held(body: held_wire.HeldRequest, parts: Parts, who: Who) -> Response:
    """Throws tools away that wait."""
    allow(who, "admin")
    return reply(held_wire.RejectedResponse(rejected=await parts.admission.reject(body.ids)))
