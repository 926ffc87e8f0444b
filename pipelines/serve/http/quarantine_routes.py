"""Admin routes for tools in quarantine: list, approve, reject."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query, Response

from pipelines.serve.formats.tool_bodies import tool_out
from pipelines.serve.http.dependencies import BODY, CallerDep, GatewayDep, errors, make_router, reply
from pipelines.serve.http.tool_routes import change_out
from pipelines.serve.schemas import tools as schemas

admin = make_router("admin")


@admin.get("/v1/admin/held", response_model=schemas.QuarantinePage, responses=errors(422))
async def list_held(
    gateway: GatewayDep, caller: CallerDep, limit: Annotated[int, Query(ge=1, le=500)] = 100
) -> Response:
    """List tools in quarantine, with the catalogue's version of each."""
    caller.charge("admin")
    waiting, tools = list(gateway.admission.quarantine.tools.values()), gateway.catalogue.current.index.tools
    page = [
        schemas.QuarantinedToolOut(
            id=item.tool.id,
            flags=list(item.flags),
            reasons=list(item.reasons),
            tool=tool_out(item.tool),
            now=tool_out(tools[item.tool.id]) if item.tool.id in tools else None,
        )
        for item in waiting[:limit]
    ]
    return reply(schemas.QuarantinePage(tools=page, total=len(waiting)))


@admin.post("/v1/admin/held/approve", response_model=schemas.ChangeOut, responses=errors(*BODY, 404, 503, 507))
async def approve_held(body: schemas.QuarantineRequest, gateway: GatewayDep, caller: CallerDep) -> Response:
    """Move tools into the catalogue; searches find them from now on."""
    caller.charge("admin")
    return reply(change_out(await gateway.admission.approve(body.ids)))


@admin.post("/v1/admin/held/reject", response_model=schemas.RejectedResponse, responses=errors(*BODY))
async def reject_held(body: schemas.QuarantineRequest, gateway: GatewayDep, caller: CallerDep) -> Response:
    """Delete tools from quarantine."""
    caller.charge("admin")
    return reply(schemas.RejectedResponse(rejected=await gateway.admission.reject(body.ids)))
