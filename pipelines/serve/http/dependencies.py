"""Shared by all routes: the gateway, the caller, documented errors, checks of limits."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import MutableMapping, Sequence
from contextlib import suppress
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response
from pydantic import BaseModel

from pipelines.serve.bounds.costs import Cost
from pipelines.serve.bounds.fairness import SHARE, grow_turn
from pipelines.serve.errors import Refusal
from pipelines.serve.gateway import Gateway
from pipelines.serve.keys import Caller
from pipelines.serve.schemas.base import ErrorBody
from pipelines.serve.schemas.server import ModelOut, ModelsResponse
from pipelines.serve.settings import Scope

log = logging.getLogger("rewrite-serve")


def make_router(tag: str | None = None, shown: bool = True) -> APIRouter:
    """Routes that the application takes as they are; operations are named after their functions."""
    return APIRouter(
        tags=[tag] if tag else None,
        include_in_schema=shown,
        generate_unique_id_function=lambda route: route.name,
    )


_DESCRIPTIONS = {
    400: "The request cannot be read.",
    401: "No API key, or an unknown one.",
    403: "The key lacks the scope.",
    404: "Not found.",
    408: "The body did not arrive in time.",
    413: "The body is too large.",
    415: "The body is not JSON.",
    421: "The server does not answer by that name.",
    422: "The request is readable but not valid.",
    429: "Too many requests; repeat after the seconds in Retry-After.",
    431: "The headers are too large.",
    500: "A bug of the server.",
    502: "The tool's server failed.",
    503: "Not available now.",
    504: "The tool's server did not answer in time.",
    507: "The server's disk is full.",
}
BODY = (408, 413, 415, 422)
"""Errors of routes with a body."""
UNITS_PER_SLOT = 16
"""Costs of a request that counts as one."""
SLOWEST_START, SLOWEST_BYTES = 20.0, 16_384
"""Seconds for a large answer, and bytes per second beyond them."""
CANNOT_START = "the rewriter cannot start; the server's log has the cause"


def errors(*others: int) -> dict[int | str, dict[str, Any]]:
    """The errors of a route, for the OpenAPI document."""
    retry = {"Retry-After": {"description": "Seconds to wait.", "schema": {"type": "integer"}}}
    return {
        status: {
            "model": ErrorBody,
            "description": _DESCRIPTIONS[status],
            **({"headers": retry} if status == 429 else {}),
        }
        for status in sorted({400, 401, 403, 421, 429, 431, 500, *others})
    }


async def _gateway(request: Request) -> Gateway:
    """Get the gateway. Coroutine: FastAPI runs plain functions in a thread, which costs more than the search."""
    gateway: Gateway = request.app.state.gateway
    return gateway


async def _caller(request: Request) -> Caller:
    caller: Caller = request.state.caller
    return caller


GatewayDep = Annotated[Gateway, Depends(_gateway)]
CallerDep = Annotated[Caller, Depends(_caller)]


def reply(model: BaseModel, status: int = 200) -> Response:
    """A response that FastAPI does not validate again."""
    return Response(model.model_dump_json(by_alias=True), status, media_type="application/json")


class ReplyInPieces(Response):
    """A JSON response; each piece is sent when the caller has taken enough of those before."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self._pieces = pieces
        size = sum(map(len, pieces))
        super().__init__(headers={"content-length": str(size)}, media_type="application/json")
        self._seconds = SLOWEST_START + size / SLOWEST_BYTES

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        """Send the pieces; a caller that takes them too slowly is disconnected."""
        with suppress(TimeoutError):  # uvicorn closes the connection of an answer without an end
            async with asyncio.timeout(self._seconds):
                await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
                for piece in self._pieces:
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
                await send({"type": "http.response.body", "body": b""})


def check_query(
    gateway: Gateway,
    caller: Caller,
    kind: str,
    utterance: str | list[str],
    k: int = 0,
    format: str | None = None,
    rewrite: bool = True,
    rerank: bool = False,
) -> None:
    """Check limits, costs, scope and rate limit of a search or rewrite, and log it if the config says so."""
    limits, utterances = gateway.config.limits, [utterance] if isinstance(utterance, str) else utterance
    check_utterances(gateway, utterances)
    if k > limits.k:
        raise Refusal(422, "invalid", f"k is at most {limits.k}")
    charge(gateway, caller, "search", gateway.service.estimate(utterances, k, format, rewrite, rerank))
    if gateway.config.log_queries:
        log.info("%s %r", kind, utterances)


def charge(gateway: Gateway, caller: Caller, scope: Scope, cost: Cost) -> None:
    """Charge the costs of a request to its caller before any work; over its share it is refused, and a costly one
    counts as several requests."""
    caller.charge(scope, cost.units)
    caller.reserve(cost.bytes, SHARE * gateway.config.limits.answer_bytes)
    grow_turn(-(-cost.units // UNITS_PER_SLOT))


def check_utterances(gateway: Gateway, utterances: list[str]) -> None:
    """Check the limits of utterances."""
    limits = gateway.config.limits
    if len(utterances) > limits.utterances:
        raise Refusal(422, "invalid", f"a request has at most {limits.utterances} utterances")
    if any(len(text) > limits.characters for text in utterances):
        raise Refusal(422, "invalid", f"an utterance has at most {limits.characters} characters")


def describe_models(gateway: Gateway, caller: Caller) -> ModelsResponse:
    """The retriever, and rewriter and reranker if there are any."""
    catalogue, rewriter = gateway.catalogue, gateway.rewriter
    fingerprint = catalogue.current.search.fingerprint
    models = [ModelOut(id=catalogue.retriever, role="retriever", ready=True, fingerprint=fingerprint)]
    if rewriter is not None:
        loaded, template = rewriter.dispatcher.loaded, rewriter.parts.template
        hashed = rewriter.parts.facts.get("fingerprint")
        models.append(
            ModelOut(
                id=loaded.model if loaded else "rewriter",
                role="rewriter",
                ready=rewriter.is_ready(),
                fingerprint=str(hashed) if hashed else None,
                engine=str(loaded.facts["engine"]) if loaded else rewriter.settings.engine.kind,
                template=f"{template.name} {template.version}",
                error=_describe_failure(rewriter.dispatcher.failure, caller),
            )
        )
    if reranker := gateway.reranker:
        name = reranker.parts.folder.path.name
        models.append(ModelOut(id=name, role="reranker", ready=True, fingerprint=reranker.parts.fingerprint))
    return ModelsResponse(models=models)


def _describe_failure(failure: str, caller: Caller) -> str | None:
    """Why the rewriter cannot start; vLLM's own words name paths and options, which are not for every caller."""
    if not failure:
        return None
    return failure if caller.scopes & {"write", "admin"} else CANNOT_START
