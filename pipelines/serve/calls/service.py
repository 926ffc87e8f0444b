"""Call tools of the catalogue: find the server, check the caller and the arguments, forward, log."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time
from collections.abc import Mapping
from typing import Any

import mcp_types as types
from mcp.shared.dispatcher import ProgressFnT

from pipelines.serve.calls.arguments import check_arguments
from pipelines.serve.calls.audit import AuditLog
from pipelines.serve.calls.outcomes import CallFailure, Outcome
from pipelines.serve.calls.upstream import McpUpstream
from pipelines.serve.catalogue.live_index import LiveCatalogue
from pipelines.serve.catalogue.mcp_sync import ToolTarget
from pipelines.serve.errors import Refusal
from pipelines.serve.keys import Caller
from pipelines.serve.metrics import Metrics
from pipelines.serve.settings import ServeConfig
from retrievers.types import Tool

REDACTED = "[redacted]"
log = logging.getLogger("rewrite-serve")


class CallService:
    """Calls tools for callers."""

    def __init__(self, config: ServeConfig, catalogue: LiveCatalogue, admission: ToolTarget, metrics: Metrics) -> None:
        self._catalogue, self._metrics = catalogue, metrics
        self.upstreams = {source.name: McpUpstream(source, config.imports, admission, metrics) for source in config.mcp}
        self.audit = AuditLog(config.calls)

    @property
    def can_call(self) -> bool:
        """True if the config names a server whose tools can be called."""
        return bool(self.upstreams)

    async def call(
        self,
        caller: Caller,
        tool_id: str,
        arguments: Mapping[str, Any],
        progress: ProgressFnT | None = None,
        search: str | None = None,
    ) -> types.CallToolResult:
        """Call a tool once, and return its result. `search`: the id of the search that found it."""
        started = time.monotonic()
        outcome: Outcome = "failed"
        upstream = ""
        try:
            tool = self._find(caller, tool_id)
            upstream = tool.provider if tool.provider in self.upstreams else ""
            result = await self._forward(caller, tool, arguments, progress)
            outcome = "tool_error" if result.is_error else "ok"
            return result
        except CallFailure as failure:
            outcome = failure.outcome
            raise
        except Refusal:
            outcome = "forbidden"
            raise
        except asyncio.CancelledError:
            outcome = "cancelled"
            raise
        finally:
            seconds = time.monotonic() - started
            self._metrics.calls.labels(upstream, outcome).inc()
            self._metrics.call_seconds.labels(upstream).observe(seconds)
            self.audit.add_call(caller.name, tool_id, arguments, seconds, outcome, search)

    def _find(self, caller: Caller, tool_id: str) -> Tool:
        caller.charge("call")
        tool = self._catalogue.current.index.tools.get(tool_id)
        if tool is None or not caller.access.may_find(tool.id, tool.provider):
            raise CallFailure("unknown_tool", "there is no tool with this id; take one from search_tools")
        return tool

    async def _forward(
        self, caller: Caller, tool: Tool, arguments: Mapping[str, Any], progress: ProgressFnT | None
    ) -> types.CallToolResult:
        upstream = self.upstreams.get(tool.provider)
        if upstream is None or tool.id != f"{tool.provider}/{tool.name}":
            message = "this tool can only be found here, not called: no server or API of the config has it"
            raise CallFailure("not_callable", message)
        listed = upstream.tools.get(tool.name)
        self._check_access(caller, tool, is_destructive(tool) or (listed is not None and is_destructive(listed)))
        check_arguments(tool, arguments)
        variables = (upstream.source.key_variable, *upstream.source.variables)
        try:
            result = await upstream.call(tool.name, arguments, progress)
        except CallFailure as failure:
            raise CallFailure(failure.outcome, redact(failure.message, variables)) from None
        return redact_result(result, variables)

    def _check_access(self, caller: Caller, tool: Tool, destructive: bool) -> None:
        access = caller.access
        if not access.may_call(tool.id, tool.provider):
            raise CallFailure("forbidden", "this key may find this tool, but not call it")
        if destructive and not access.may_destroy(tool.id, tool.provider):
            message = "this tool changes or deletes what exists; the key needs it in `access.destructive`"
            raise CallFailure("forbidden", message)


def is_destructive(tool: Tool) -> bool:
    """True if the server's annotations say that calls may change or delete what exists.

    A server that annotates a tool as not read-only and says no more means destructive, by the specification. A tool
    without annotations counts as harmless: most servers annotate nothing.
    """
    try:
        hints = json.loads(tool.call).get("annotations", {}) if tool.call else {}
    except (ValueError, AttributeError):
        return False
    if hints.get("readOnlyHint") is True:
        return False
    return bool(hints.get("destructiveHint", hints.get("readOnlyHint") is False))


def redact(text: str, variables: tuple[str, ...]) -> str:
    """The text without the values of these environment variables."""
    for name in variables:
        secret = os.environ.get(name, "").strip() if name else ""
        if len(secret) >= 8:
            text = text.replace(secret, REDACTED)
    return text


def redact_result(result: types.CallToolResult, variables: tuple[str, ...]) -> types.CallToolResult:
    """The result without the values of these environment variables, which a server may repeat."""
    if not any(variables):
        return result
    text = result.model_dump_json(by_alias=True)
    cleaned = redact(text, variables)
    return result if cleaned == text else types.CallToolResult.model_validate_json(cleaned, by_name=False)
