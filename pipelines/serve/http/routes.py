"""Routes for search, rewrite, feedback, and the server's state."""

from __future__ import annotations

import asyncio
import time

from fastapi import Response

from pipelines.serve.errors import Refusal
from pipelines.serve.http.dependencies import (
    BODY,
    CallerDep,
    GatewayDep,
    ReplyInPieces,
    check_query,
    check_utterances,
    describe_models,
    errors,
    log,
    make_router,
    reply,
)
from pipelines.serve.schemas import search as schemas
from pipelines.serve.schemas.server import HealthResponse, ModelsResponse, ReadyResponse

router = make_router()


@router.post("/v1/search", response_model=schemas.SearchResponse, responses=errors(*BODY, 503), tags=["search"])
async def search(body: schemas.SearchRequest, gateway: GatewayDep, caller: CallerDep) -> Response:
    """Find tools for an utterance, or for each of several.

    Raw search and rewriter run in parallel. If the rewriter fails, `fallback` has the reason, and the tools are those
    of the raw search.
    """
    rewrites, reranks = body.rewrite != "off", body.rerank == "auto"
    check_query(gateway, caller, "search", body.utterance, body.k, body.format, rewrites, reranks)
    response = await gateway.service.search(body, caller.access)
    note_search(gateway, caller, body, response)
    pieces = await gateway.service.answers.dump(response, body.k)
    return Response(pieces[0], media_type="application/json") if len(pieces) == 1 else ReplyInPieces(pieces)


def note_search(
    gateway: GatewayDep, caller: CallerDep, body: schemas.SearchRequest, response: schemas.SearchResponse
) -> None:
    """Keep the search for the calls that may follow it."""
    if not gateway.calls.can_call:
        return
    utterances = [body.utterance] if isinstance(body.utterance, str) else body.utterance
    for utterance, result in zip(utterances, response.results, strict=True):
        tools = [tool.id for tool in result.tools]
        gateway.calls.audit.add_search(caller.name, utterance, tools, response.fingerprints.index)


@router.post("/v1/rewrite", response_model=schemas.RewriteResponse, responses=errors(*BODY, 404, 503), tags=["search"])
async def rewrite(body: schemas.RewriteBody, gateway: GatewayDep, caller: CallerDep) -> Response:
    """Rewrite an utterance, or each of several, without a search."""
    check_query(gateway, caller, "rewrite", body.utterance)
    return reply(await gateway.service.rewrite(body, caller.access))


@router.post(
    "/v1/feedback", response_model=schemas.FeedbackResponse, responses=errors(*BODY, 404, 503, 507), tags=["search"]
)
async def feedback(body: schemas.FeedbackRequest, gateway: GatewayDep, caller: CallerDep) -> Response:
    """Store the right tools for an utterance; retrievers and rewriters learn from it later, or at once."""
    check_utterances(gateway, [body.utterance])
    caller.charge("write")
    if gateway.feedback is None:
        raise Refusal(404, "not_found", "this server takes no feedback")
    index, tools = gateway.catalogue.current.index, list(dict.fromkeys(body.tools))
    if unknown := [tool for tool in body.tools if tool not in index.tools]:
        message = f"{len(unknown)} of {len(body.tools)} tools are not in the catalogue; send ids as a search gives them"
        raise Refusal(422, "unknown_tool", message)
    record = {
        "time": round(time.time(), 3),
        "utterance": body.utterance,
        "tools": tools,
        "index": index.fingerprint,
        "key": caller.name,
    }
    try:
        await asyncio.to_thread(gateway.feedback.append, record)
    except OSError as error:
        log.error("feedback cannot be written: %s", error)
        raise Refusal(507, "disk_full", "the server cannot store this now") from error
    gateway.metrics.feedback.inc()
    if gateway.config.learn:
        await gateway.catalogue.confirm(body.utterance, tools)
    return reply(schemas.FeedbackResponse())


@router.get("/v1/models", response_model=ModelsResponse, responses=errors(), tags=["server"])
async def list_models(gateway: GatewayDep, caller: CallerDep) -> Response:
    """List the retriever and the rewriter."""
    caller.charge("search")
    return reply(describe_models(gateway, caller))


@router.get("/healthz", response_model=HealthResponse, responses=errors(), tags=["server"])
async def healthz() -> Response:
    """The process is alive. Needs no key."""
    return reply(HealthResponse())


@router.get(
    "/readyz",
    response_model=ReadyResponse,
    responses={**errors(), 503: {"model": ReadyResponse, "description": "Send requests elsewhere."}},
    tags=["server"],
)
async def readyz(gateway: GatewayDep) -> Response:
    """The server takes requests. Needs no key. A rewriter that is down does not make it false."""
    rewriter = gateway.rewriter
    state = ReadyResponse(
        ready=not gateway.draining and not gateway.failure,
        tools=len(gateway.catalogue.current.index.tools),
        rewriter="none" if rewriter is None else rewriter.state,
        stale=bool(gateway.catalogue.stale),
        error=gateway.failure or None,
    )
    return reply(state, 200 if state.ready else 503)


@router.get(
    "/metrics",
    response_class=Response,
    responses={**errors(), 200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
    tags=["server"],
)
async def metrics(gateway: GatewayDep, caller: CallerDep) -> Response:
    """Metrics for Prometheus."""
    caller.charge("search", 0)
    gateway.metrics.waiting.set(gateway.service.batcher.waiting)
    return Response(gateway.metrics.page(), media_type="text/plain; version=0.0.4; charset=utf-8")
