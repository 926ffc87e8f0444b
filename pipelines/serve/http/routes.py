"""Searching, rewriting, confirming: what every caller is here for."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response
from pydantic import BaseModel

from pipelines.serve.errors import Refusal
from pipelines.serve.gateway import Gateway
from pipelines.serve.keys import Caller
from pipelines.serve.schemas import search as wire
from pipelines.serve.schemas import state as state_wire
from pipelines.serve.settings import Scope

router = APIRouter()
log = logging.getLogger("rewrite-serve")
_MEANINGS = {
    400: "Not readable as a request.",
    401: "No API key, or one that is not known.",
    403: "The key has no scope for this.",
    404: "There is no such thing.",
    408: "The body did not arrive in time.",
    413: "The body is too large.",
    415: "The body is not JSON.",
    421: "The server does not answer by that name.",
    422: "Readable, and not acceptable.",
    429: "Too much at a time; come back after the seconds that Retry-After names.",
    431: "The headers are too large.",
    500: "A fault of the server.",
    503: "Not now.",
    507: "The server's disk is full.",
}
ALWAYS = (400, 401, 403, 421, 429, 431, 500)


def errors(*others: int) -> dict[int | str, dict[str, Any]]:
    """The errors of a route, for the OpenAPI document."""
    retry = {"Retry-After": {"description": "Seconds to wait.", "schema": {"type": "integer"}}}
    return {
        status: {
            "model": wire.ErrorBody,
            "description": _MEANINGS[status],
            **({"headers": retry} if status == 429 else {}),
        }
        for status in sorted({*ALWAYS, *others})
    }


def gateway(request: Request) -> Gateway:
    """The server's parts."""
    found: Gateway = request.app.state.gateway
    return found


def caller(request: Request) -> Caller:
    """Who is calling, as the guard found."""
    found: Caller = request.state.caller
    return found


Parts = Annotated[Gateway, Depends(gateway)]
Who = Annotated[Caller, Depends(caller)]
BODY = (408, 413, 415, 422)


def reply(model: BaseModel, status: int = 200) -> Response:
    """A response without being validated a second time."""
    return Response(model.model_dump_json(by_alias=True), status, media_type="application/json")


def allow(who: Caller, scope: Scope, cost: int = 1) -> None:
    """Refuses what the key is not for, or has no more share of."""
    who.need(scope)
    who.spend(cost)


def checked(parts: Gateway, utterance: str | list[str]) -> list[str]:
    """The utterances, within this server's limits."""
    found, limits = [utterance] if isinstance(utterance, str) else utterance, parts.config.limits
    if len(found) > limits.utterances:
        raise Refusal(422, "invalid", f"a request has at most {limits.utterances} utterances")
    if any(len(text) > limits.characters for text in found):
        raise Refusal(422, "invalid", f"an utterance has at most {limits.characters} characters")
    return found


@router.post("/v1/search", response_model=wire.SearchResponse, responses=errors(*BODY, 503), tags=["search"])
async def search(body: wire.SearchRequest, parts: Parts, who: Who) -> Response:
    """Tools for an utterance, or for each of several.

    Raw retrieval and the rewriter run side by side. What goes wrong with the rewriter is told in `fallback`, and the
    tools are then those of raw retrieval.
    """
    utterances = checked(parts, body.utterance)
    if body.k > parts.config.limits.places:
        raise Refusal(422, "invalid", f"k is at most {parts.config.limits.places}")
    allow(who, "search", len(utterances))
    if parts.config.log_queries:
        log.info("search %r", utterances)
    return reply(await parts.service.search(body))


@router.post("/v1/rewrite", response_model=wire.RewriteResponse, responses=errors(*BODY, 404, 503), tags=["search"])
async def rewrite(body: wire.RewriteRequest, parts: Parts, who: Who) -> Response:
    """What the rewriter makes of an utterance, or of each of several."""
    utterances = checked(parts, body.utterance)
    allow(who, "search", len(utterances))
    if parts.config.log_queries:
        log.info("rewrite %r", utterances)
    return reply(await parts.service.rewrite(body))


@router.post(
    "/v1/feedback", response_model=wire.FeedbackResponse, responses=errors(*BODY, 404, 503, 507), tags=["search"]
)
async def feedback(body: wire.FeedbackRequest, parts: Parts, who: Who) -> Response:
    """Confirms which tools were the right ones; retrievers and rewriters learn from it later, or at once."""
    checked(parts, body.utterance)
    allow(who, "write")
    if parts.feedback is None:
        raise Refusal(404, "not_found", "this server takes no feedback")
    snapshot = parts.catalogue.current
    if strangers := [tool for tool in body.tools if tool not in snapshot.index.tools]:
        told = f"{len(strangers)} of {len(body.tools)} tools are not in the catalogue; give ids as a search gives them"
        raise Refusal(422, "unknown_tool", told)
    record = {
        "time": round(time.time(), 3),
        "utterance": body.utterance,
        "tools": list(dict.fromkeys(body.tools)),
        "index": snapshot.index.fingerprint,
        "key": who.name,
    }
    try:
        await asyncio.to_thread(parts.feedback.append, record)
    except OSError as error:
        log.error("feedback cannot be written: %s", error)
        raise Refusal(507, "disk_full", "the server cannot keep this now") from error
    parts.metrics.feedback.inc()
    if parts.config.learn:
        await parts.catalogue.confirm(body.utterance, list(dict.fromkeys(body.tools)))
    return reply(wire.FeedbackResponse())


@router.get("/v1/models", response_model=state_wire.ModelsResponse, responses=errors(), tags=["server"])
async def list_models(parts: Parts, who: Who) -> Response:
    """What answers here."""
    allow(who, "search")
    return reply(models(parts))


def models(parts: Gateway) -> state_wire.ModelsResponse:
    """The retriever, and the rewriter where there is one."""
    snapshot = parts.catalogue.current
    found = [
        state_wire.ModelOut(
            id=parts.catalogue.retriever, role="retriever", ready=True, fingerprint=snapshot.search.fingerprint
        )
    ]
    if parts.models is not None:
        loaded, template = parts.models.rewriting.loaded, parts.models.parts.template
        fingerprint = parts.models.parts.facts.get("fingerprint")
        found.append(
            state_wire.ModelOut(
                id=loaded.model if loaded else "rewriter",
                role="rewriter",
                ready=parts.models.ready(),
                fingerprint=str(fingerprint) if fingerprint else None,
                engine=parts.models.engine,
                template=f"{template.name} {template.version}",
            )
        )
    return state_wire.ModelsResponse(models=found)
