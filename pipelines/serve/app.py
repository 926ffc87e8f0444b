"""The FastAPI application: routes, error responses, the OpenAPI document, start and stop."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from copy import deepcopy
from functools import cache
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from starlette.exceptions import HTTPException

from pipelines.serve.errors import FAULT, STORE_DOWN, Refusal
from pipelines.serve.gateway import Gateway
from pipelines.serve.http import call_routes, quarantine_routes, routes, stream_routes, tool_routes
from pipelines.serve.http.asgi import App, Message, Receive, Send
from pipelines.serve.http.guard import Guard, error_body, refusal_headers
from pipelines.serve.http.leaving import CallerLeft
from pipelines.serve.mcp.late_route import PATH as MCP_PATH
from pipelines.serve.mcp.late_route import LateMcpRoute
from pipelines.serve.page import data_routes, explain_route
from pipelines.serve.page import routes as page_routes
from retrievers.errors import StoreDown

log = logging.getLogger("rewrite-serve")
_HTTP_ERRORS = {
    400: ("bad_request", "the body cannot be read"),
    404: ("not_found", "there is no such route"),
    405: ("method_not_allowed", "this route does not take that method"),
}
_OPENAPI: dict[tuple[bool, bool], dict[str, Any]] = {}
"""OpenAPI documents without a server's limits, by (has page, has admin routes): making one takes most of a second."""


def make_app(gateway: Gateway) -> App:
    """The whole server as one ASGI application."""
    mcp, config = LateMcpRoute(gateway), gateway.config

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await gateway.start()
        try:
            async with mcp.open():
                yield
        finally:
            await gateway.stop()

    api = FastAPI(
        title="toolrewrite",
        version="1",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    api.state.gateway = gateway
    routers = [routes.router, stream_routes.router, tool_routes.router, call_routes.router]
    if config.page:
        routers += [page_routes.router, data_routes.router, explain_route.router]
    if config.admin:
        routers += [tool_routes.admin, quarantine_routes.admin, call_routes.admin]
    for router in routers:
        api.router.routes.extend(router.routes)  # `include_router` would build each route again, 0.3 s in all
    api.router.routes.append(mcp.route)
    _handle_errors(api)
    api.openapi = cache(lambda: _openapi(api, gateway))  # type: ignore[method-assign]
    hosts = frozenset(host.lower() for host in config.hosts)
    if config.is_loopback and not hosts:  # against DNS rebinding: web pages must not reach us by a name of theirs
        hosts = frozenset({"localhost", "127.0.0.1", "[::1]", config.host.lower()})

    async def app(scope: Message, receive: Receive, send: Send) -> None:
        # Past the middleware and the other routes, which take as long as a call.
        is_mcp = scope["type"] == "http" and scope["path"] == MCP_PATH and scope["method"] == "POST"
        await (mcp if is_mcp else api)(scope, receive, send)

    return Guard(app, gateway.gate, config.limits, hosts, gateway.metrics)


def _handle_errors(api: FastAPI) -> None:
    def respond(status: int, code: str, message: str, headers: dict[str, str] | None = None) -> Response:
        return Response(error_body(code, message), status, headers, media_type="application/json")

    @api.exception_handler(Refusal)
    async def refusal(_: Request, error: Refusal) -> Response:
        return respond(error.status, error.code, error.message, refusal_headers(error))

    @api.exception_handler(CallerLeft)
    async def left(_: Request, __: CallerLeft) -> Response:
        return Response(status_code=499)  # for the log

    @api.exception_handler(StoreDown)
    async def store_down(_: Request, error: StoreDown) -> Response:
        log.error("%s", error)
        return respond(503, "unavailable", STORE_DOWN, {"Retry-After": "5"})

    @api.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        if first["type"] == "json_invalid":
            return respond(400, "bad_request", "the body is not JSON")
        if first["type"] == "extra_forbidden":  # its name is the caller's, and is not repeated
            return respond(422, "invalid", f"the request has {first['msg']}")
        path = ".".join(str(step) for step in first["loc"] if isinstance(step, (str, int)))[:200]
        return respond(422, "invalid", f"{path or 'the request'}: {str(first['msg'])[:200]}")

    @api.exception_handler(HTTPException)
    async def http_error(_: Request, error: HTTPException) -> Response:
        code, message = _HTTP_ERRORS.get(error.status_code, ("error", "the request failed"))
        return respond(error.status_code, code, message, dict(error.headers or {}))

    @api.exception_handler(Exception)
    async def bug(_: Request, error: Exception) -> Response:
        log.exception("a request failed", exc_info=error)
        return respond(500, "fault", FAULT)


def _openapi(api: FastAPI, gateway: Gateway) -> dict[str, Any]:
    """The OpenAPI document, with this server's limits."""
    config = gateway.config
    variant = config.page, config.admin
    if variant not in _OPENAPI:
        _OPENAPI[variant] = get_openapi(
            title=api.title, version=api.version, openapi_version="3.1.0", routes=api.routes
        )
    document = deepcopy(_OPENAPI[variant])
    limits, schemas = config.limits, document["components"]["schemas"]
    for name in ("SearchRequest", "RewriteBody", "FeedbackRequest"):
        utterance = schemas[name]["properties"]["utterance"]
        for schema in (utterance, *utterance.get("anyOf", [])):
            for text in (schema, schema.get("items", {})):
                if text.get("type") == "string":
                    text["maxLength"] = limits.characters
                elif text.get("type") == "array":
                    text["maxItems"] = min(64, limits.utterances)
    schemas["SearchRequest"]["properties"]["k"]["maximum"] = min(200, limits.k)
    schemas["ToolsBody"]["properties"]["tools"]["maxItems"] = min(500, limits.tools)
    document["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    optional: list[dict[str, list[str]]] = [{}] if config.anonymous else []
    for path, methods in document["paths"].items():
        for operation in methods.values():
            operation["security"] = [{}] if path in ("/healthz", "/readyz") else [{"key": []}, *optional]
    return document
