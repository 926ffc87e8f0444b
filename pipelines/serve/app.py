"""The FastAPI application: routes, errors in one shape, the OpenAPI document, start and end."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from copy import deepcopy
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from starlette.exceptions import HTTPException

from pipelines.serve.errors import Refusal
from pipelines.serve.gateway import Gateway
from pipelines.serve.http import quarantine_routes, routes, tool_routes
from pipelines.serve.http.guard import App, Guard, error_body, refusal_headers
from pipelines.serve.http.routes import Parts, Who, allow, errors, reply
from pipelines.serve.mcp.server import McpDoor
from pipelines.serve.page import data_routes
from pipelines.serve.page import routes as page_routes
from pipelines.serve.schemas import state as state_wire
from retrievers.errors import StoreDown

log = logging.getLogger("rewrite-serve")
_CODES = {400: "bad_request", 404: "not_found", 405: "method_not_allowed"}
_SENTENCES = {
    400: "the body cannot be read",
    404: "there is no such route",
    405: "this route does not take that method",
}

_PLAIN: dict[tuple[bool, bool], dict[str, Any]] = {}
"""The OpenAPI document before a server's own limits, by whether it has a page and an admin: most of what a start is."""


def make_app(gateway: Gateway) -> App:
    """The whole server as one ASGI application."""
    mcp = McpDoor(gateway)

    @asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        await gateway.start()
        try:
            async with mcp.open():
                yield
        finally:
            await gateway.stop()

    api = FastAPI(
        title="toolrewrite",
        version="1",
        lifespan=life,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        generate_unique_id_function=lambda route: route.name,
    )
    api.state.gateway = gateway
    _server_routes(api)
    api.include_router(routes.router)
    api.include_router(tool_routes.router)
    if gateway.config.page:
        api.include_router(page_routes.router)
        api.include_router(data_routes.router)
    if gateway.config.admin:
        api.include_router(tool_routes.admin)
        api.include_router(quarantine_routes.admin)
    api.router.routes.append(mcp.route)
    _errors(api)
    document = _document(api, gateway)
    api.openapi = lambda: document  # type: ignore[method-assign]
    config = gateway.config
    hosts = frozenset(host.lower() for host in config.hosts)
    if config.loopback and not hosts:  # a web page must not reach us by a name that it made point here
        hosts = frozenset({"localhost", "127.0.0.1", "[::1]", config.host.lower()})
    return Guard(api, gateway.gate, config.limits, hosts, gateway.metrics)


def _server_routes(api: FastAPI) -> None:
    @api.get("/healthz", response_model=state_wire.HealthResponse, responses=errors(), tags=["server"])
    async def healthz() -> Response:
        """The process lives. Needs no key."""
        return reply(state_wire.HealthResponse())

    @api.get(
        "/readyz",
        response_model=state_wire.ReadyResponse,
        responses={**errors(), 503: {"model": state_wire.ReadyResponse, "description": "Send requests elsewhere."}},
        tags=["server"],
    )
    async def readyz(parts: Parts) -> Response:
        """Whether requests should be sent here. Needs no key. A rewriter that is down does not make it false."""
        found = state_wire.ReadyResponse(
            ready=not parts.draining,
            tools=len(parts.catalogue.current.index.tools),
            rewriter="none" if parts.models is None else "ready" if parts.models.ready() else "starting",
            stale=bool(parts.catalogue.stale),
        )
        return reply(found, 200 if found.ready else 503)

    @api.get(
        "/metrics",
        response_class=Response,
        responses={**errors(), 200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
        tags=["server"],
    )
    async def metrics(parts: Parts, who: Who) -> Response:
        """Figures for Prometheus."""
        allow(who, "search", 0)
        parts.metrics.waiting.set(parts.batcher.waiting)
        return Response(parts.metrics.page(), media_type="text/plain; version=0.0.4; charset=utf-8")


def _errors(api: FastAPI) -> None:
    def told(status: int, code: str, message: str, headers: dict[str, str] | None = None) -> Response:
        return Response(error_body(code, message), status, headers, media_type="application/json")

    @api.exception_handler(Refusal)
    async def refused(_: Request, error: Refusal) -> Response:
        return told(error.status, error.code, error.message, refusal_headers(error))

    @api.exception_handler(StoreDown)
    async def away(_: Request, error: StoreDown) -> Response:
        log.error("%s", error)
        return told(503, "unavailable", "the store of vectors does not answer; try again later", {"Retry-After": "5"})

    @api.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        if first["type"] == "json_invalid":
            return told(400, "bad_request", "the body is not JSON")
        # The place is made of the document's own names, except for keys that nobody knows, which are not repeated.
        at = ".".join(str(step) for step in first["loc"] if isinstance(step, (str, int)))[:200]
        place = "an unknown field" if first["type"] == "extra_forbidden" else at or "the request"
        return told(422, "invalid", f"{place}: {_said(first)}")

    @api.exception_handler(HTTPException)
    async def http(_: Request, error: HTTPException) -> Response:
        code = _CODES.get(error.status_code, "error")
        headers = dict(error.headers or {})
        return told(error.status_code, code, _SENTENCES.get(error.status_code, "it cannot be done"), headers)

    @api.exception_handler(Exception)
    async def broken(_: Request, error: Exception) -> Response:
        log.exception("a request failed", exc_info=error)
        return told(500, "fault", "the server failed; its log tells more")


def _said(error: dict[str, Any]) -> str:
    """Pydantic's own words where they hold nothing of the request."""
    return "not known here" if error["type"] == "extra_forbidden" else str(error["msg"])[:200]


def _document(api: FastAPI, gateway: Gateway) -> dict[str, Any]:
    """The OpenAPI document, with this server's limits in it."""
    which = bool(gateway.config.page), bool(gateway.config.admin)
    if which not in _PLAIN:
        _PLAIN[which] = get_openapi(title=api.title, version=api.version, openapi_version="3.1.0", routes=api.routes)
    found = deepcopy(_PLAIN[which])
    limits, schemas = gateway.config.limits, found["components"]["schemas"]
    for name in ("SearchRequest", "RewriteRequest", "FeedbackRequest"):
        for text in _texts(schemas[name]["properties"]["utterance"]):
            if text.get("type") == "string":
                text["maxLength"] = limits.characters
            else:
                text["maxItems"] = min(64, limits.utterances)
    schemas["SearchRequest"]["properties"]["k"]["maximum"] = min(200, limits.places)
    schemas["ToolsBody"]["properties"]["tools"]["maxItems"] = min(500, limits.tools)
    found["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    optional: list[dict[str, list[str]]] = [{}] if gateway.config.anonymous else []
    for path, methods in found["paths"].items():
        for facts in methods.values():
            facts["security"] = [{}] if path in ("/healthz", "/readyz") else [{"key": []}, *optional]
    return found


def _texts(schema: dict[str, Any]) -> list[dict[str, Any]]:
    every = [schema, *schema.get("anyOf", [])]
    return [each for one in every for each in (one, one.get("items", {})) if "type" in each]
