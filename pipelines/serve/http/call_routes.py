"""Routes for calls of tools, and for the state of the servers that take them."""

from __future__ import annotations

from fastapi import Request, Response
from pydantic import JsonValue

from pipelines.serve.calls.outcomes import STATUS, CallFailure
from pipelines.serve.errors import Refusal
from pipelines.serve.http.dependencies import BODY, CallerDep, GatewayDep, errors, make_router, reply
from pipelines.serve.http.leaving import while_connected
from pipelines.serve.schemas import calls as schemas

router = make_router("calls")
admin = make_router("admin")


@router.post("/v1/call", response_model=schemas.CallResponse, responses=errors(*BODY, 404, 502, 503, 504))
async def call(request: Request, body: schemas.CallRequest, gateway: GatewayDep, caller: CallerDep) -> Response:
    """Call a tool once. A tool that fails is no error of the request: `is_error` says so.

    A caller who closes the connection cancels the call.
    """
    try:
        result = await while_connected(request.receive, gateway.calls.call(caller, body.tool, body.arguments))
    except CallFailure as failure:
        retry_after = 1.0 if failure.outcome == "busy" else None
        raise Refusal(STATUS.get(failure.outcome, 500), failure.outcome, failure.message, retry_after) from None
    content: list[JsonValue] = [
        part.model_dump(mode="json", by_alias=True, exclude_none=True) for part in result.content
    ]
    return reply(
        schemas.CallResponse(content=content, structured=result.structured_content, is_error=bool(result.is_error))
    )


@router.get("/v1/upstreams", response_model=schemas.UpstreamsResponse, responses=errors())
async def list_upstreams(gateway: GatewayDep, caller: CallerDep) -> Response:
    """List the servers whose tools can be called, with their health."""
    caller.charge("call")
    return reply(schemas.UpstreamsResponse(upstreams=gateway.calls.describe(caller)))


@admin.get("/v1/admin/calls", response_model=schemas.CallsResponse, responses=errors())
async def list_calls(gateway: GatewayDep, caller: CallerDep) -> Response:
    """List the newest calls of all keys."""
    caller.charge("admin")
    records = [
        schemas.CallOut.model_validate({key: value for key, value in record.items() if key != "kind"})
        for record in reversed(gateway.calls.audit.recent)
    ]
    return reply(schemas.CallsResponse(calls=records))
