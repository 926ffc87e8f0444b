"""A search in two lines: the raw ranking at once, and the improved one when rewriter and reranker have answered."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

from fastapi import Response
from fastapi.responses import StreamingResponse

from pipelines.serve.errors import Refusal
from pipelines.serve.http.dependencies import BODY, CallerDep, GatewayDep, check_query, errors, make_router
from pipelines.serve.http.routes import note_search
from pipelines.serve.schemas import search as schemas

router = make_router()
LINES = "application/x-ndjson"


@router.post(
    "/v1/search/stream",
    response_class=Response,
    responses={
        **errors(*BODY, 503),
        200: {"content": {LINES: {"schema": {"type": "string"}}}, "description": "One or two lines of JSON."},
    },
    tags=["search"],
)
async def search_stream(body: schemas.SearchRequest, gateway: GatewayDep, caller: CallerDep) -> Response:
    """Find tools for one utterance; each line of the answer is that of `/v1/search` with a `stage`.

    `raw` comes first, without rewriter and reranker; `final` replaces it. There is no `raw` line where neither has
    anything to do, or where the final answer is ready as soon.
    """
    if not isinstance(body.utterance, str):
        raise Refusal(422, "invalid", "a stream answers one utterance; send several to /v1/search")
    rewrites, reranks = body.rewrite != "off", body.rerank == "auto"
    check_query(gateway, caller, "search", body.utterance, body.k, body.format, rewrites, reranks)
    caller.charge("search")  # it may be searched twice
    service = gateway.service
    final = asyncio.ensure_future(service.search(body, caller.access))
    first = b""
    try:
        if service.is_improved(body):
            raw = await service.search(body.model_copy(update={"rewrite": "off", "rerank": "off"}), caller.access)
            first = b"" if final.done() else await _line("raw", raw, gateway)
        if not first:
            await final  # a failure still gets its status
    except BaseException:
        final.cancel()
        raise

    async def lines() -> AsyncIterator[bytes]:
        try:
            if first:
                yield first
            try:
                response = await final
                last = await _line("final", response, gateway)
            except Refusal as refusal:
                yield _error(refusal)
                return
            note_search(gateway, caller, body, response)
            yield last
        finally:
            final.cancel()

    return StreamingResponse(lines(), media_type=LINES, headers={"X-Accel-Buffering": "no"})


async def _line(stage: str, response: schemas.SearchResponse, gateway: GatewayDep) -> bytes:
    pieces = await gateway.service.answers.dump(response, len(response.results[0].tools))
    return b'{"stage":"' + stage.encode() + b'",' + b"".join(pieces)[1:] + b"\n"


def _error(refusal: Refusal) -> bytes:
    """The raw ranking stands; this is why no other one came."""
    error = {"code": refusal.code, "message": str(refusal)}
    return json.dumps({"stage": "final", "error": error}).encode() + b"\n"
