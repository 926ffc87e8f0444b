"""Call tools of the catalogue: find the server, check the caller and the arguments, forward, log."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from pipelines.serve.bounds.costs import Cost
from pipelines.serve.bounds.fairness import outside
from pipelines.serve.calls.api_request import DESTRUCTIVE
from pipelines.serve.calls.arguments import check_arguments, load_schema
from pipelines.serve.calls.audit import AuditLog
from pipelines.serve.calls.outcomes import CallFailure, Outcome
from pipelines.serve.catalogue.live_index import LiveCatalogue
from pipelines.serve.catalogue.redaction import redact, redact_progress, redact_result
from pipelines.serve.errors import Refusal
from pipelines.serve.keys import Caller
from pipelines.serve.metrics import Metrics
from pipelines.serve.schemas.calls import UpstreamOut
from pipelines.serve.settings import ServeConfig
from retrievers.types import Tool

if TYPE_CHECKING:
    import mcp_types as types
    from mcp.shared.dispatcher import ProgressFnT

    from pipelines.serve.calls.api import ApiUpstream
    from pipelines.serve.calls.upstream import McpUpstream
    from pipelines.serve.catalogue.mcp_sync import ToolTarget

log = logging.getLogger("rewrite-serve")


class CallService:
    """Calls tools for callers."""

    def __init__(self, config: ServeConfig, catalogue: LiveCatalogue, admission: ToolTarget, metrics: Metrics) -> None:
        self._catalogue, self._metrics = catalogue, metrics
        self.upstreams: dict[str, McpUpstream] = {}
        self.apis: dict[str, ApiUpstream] = {}
        self._open(config, admission)
        self.audit = AuditLog(config.calls)
        self._counts: dict[str, Counter[str]] = {name: Counter() for name in (*self.upstreams, *self.apis)}

    def _open(self, config: ServeConfig, admission: ToolTarget) -> None:
        """Open the servers of the config. Their library is imported only for them: it takes a third of a start."""
        if config.mcp:
            from pipelines.serve.calls.upstream import McpUpstream

            for source in config.mcp:
                self.upstreams[source.name] = McpUpstream(source, config.imports, admission, self._metrics)
        if config.apis:
            from pipelines.serve.calls.api import ApiUpstream

            self.apis.update({source.provider: ApiUpstream(source, config.imports) for source in config.apis})

    @property
    def can_call(self) -> bool:
        """True if the config names a server whose tools can be called."""
        return bool(self.upstreams or self.apis)

    async def close(self) -> None:
        """Close the connections to APIs; those to MCP servers end with their tasks."""
        for api in self.apis.values():
            await api.close()
        self.audit.close()

    def describe(self, caller: Caller) -> list[UpstreamOut]:
        """The state of every server of which the caller may find a tool by its provider."""
        providers = Counter(
            tool.provider for tool in self._catalogue.current.index.tools.values() if caller.may_find(tool)
        )
        shown = [
            UpstreamOut(
                name=name,
                kind="http" if upstream.source.url else "command",
                state=upstream.state,
                error=upstream.error,
                tools=len(upstream.tools),
                starts=upstream.starts,
                running=upstream.running,
                calls=dict(self._counts[name]),
            )
            for name, upstream in self.upstreams.items()
        ]
        shown += [
            UpstreamOut(
                name=name,
                kind="api",
                state="down" if api.error else "up",
                error=api.error,
                tools=providers[name],
                starts=0,
                running=api.running,
                calls=dict(self._counts[name]),
            )
            for name, api in self.apis.items()
        ]
        return [server for server in shown if caller.access.finds_all or providers[server.name]]

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
            upstream = tool.provider if tool.provider in self._counts else ""
            result = await self._forward(caller, tool, arguments, progress)
            outcome = "tool_error" if result.is_error else "ok"
            _charge_size(caller, result)
            return result
        except CallFailure as failure:
            outcome = failure.outcome
            raise
        except Refusal as refusal:
            outcome = "busy" if refusal.status == 429 else "forbidden"
            raise
        except asyncio.CancelledError:
            outcome = "cancelled"
            raise
        finally:
            seconds = time.monotonic() - started
            self._metrics.calls.labels(upstream, outcome).inc()
            if upstream:
                self._counts[upstream][outcome] += 1
            self._metrics.call_seconds.labels(upstream).observe(seconds)
            self.audit.add_call(caller.name, tool_id, arguments, seconds, outcome, search)

    def _find(self, caller: Caller, tool_id: str) -> Tool:
        caller.charge("call")
        tool = self._catalogue.current.index.tools.get(tool_id)
        if tool is None or not caller.may_find(tool):
            raise CallFailure("unknown_tool", "there is no tool with this id; take one from search_tools")
        return tool

    def may_call(self, caller: Caller, tool: Tool) -> bool:
        """True if a call of this caller with fitting arguments would be forwarded."""
        try:
            self._check_access(caller, tool, self._route(tool)[0])
        except CallFailure:
            return False
        return caller.may_find(tool)

    def _route(self, tool: Tool) -> tuple[McpUpstream | None, ApiUpstream | None]:
        """The server or API that has the tool."""
        upstream, api = self.upstreams.get(tool.provider), self.apis.get(tool.provider)
        if upstream is not None and tool.id != f"{tool.provider}/{tool.name}":
            upstream = None
        if upstream is None and (api is None or not tool.call):
            message = "this tool can only be found here, not called: no server or API of the config has it"
            raise CallFailure("not_callable", message)
        return upstream, api

    async def _forward(
        self, caller: Caller, tool: Tool, arguments: Mapping[str, Any], progress: ProgressFnT | None
    ) -> types.CallToolResult:
        upstream, api = self._route(tool)
        self._check_access(caller, tool, upstream)
        await load_schema(tool)
        check_arguments(tool, arguments)
        if upstream is not None:
            variables = upstream.source.secrets
            calling = upstream.call(tool.name, arguments, redact_progress(progress, variables))
        else:
            assert api is not None
            variables, calling = (api.source.key_variable,), api.call(tool, arguments)
        try:
            with outside():  # a slow server keeps no other request waiting
                result = await calling
            return redact_result(result, variables)
        except CallFailure as failure:
            raise CallFailure(failure.outcome, redact(failure.message, variables)) from None

    def _check_access(self, caller: Caller, tool: Tool, upstream: McpUpstream | None) -> None:
        access, listed = caller.access, upstream.tools.get(tool.name) if upstream is not None else None
        destructive = is_destructive(tool) or (listed is not None and is_destructive(listed))
        if not access.may_call(tool.id, tool.provider):
            raise CallFailure("forbidden", "this key may find this tool, but not call it")
        if destructive and not access.may_destroy(tool.id, tool.provider):
            message = "this tool changes or deletes what exists; the key needs it in `access.destructive`"
            raise CallFailure("forbidden", message)


def _charge_size(caller: Caller, result: types.CallToolResult) -> None:
    """Charge a large result to the key, as a large answer to a search is; a key without units left keeps the result."""
    size = sum(len(getattr(part, "text", "") or getattr(part, "data", "")) for part in result.content)
    with suppress(Refusal):
        for _ in range(Cost(searches=0, bytes=size).units):
            caller.charge("call")


def is_destructive(tool: Tool) -> bool:
    """True if the server's annotations say that calls may change or delete what exists, or the HTTP method does.

    A server that annotates a tool as not read-only and says no more means destructive, by the specification. A tool
    without annotations counts as harmless: most servers annotate nothing.
    """
    try:
        facts = json.loads(tool.call) if tool.call else {}
        hints = facts.get("annotations", {})
        if facts.get("method") in DESTRUCTIVE:
            return True
    except (ValueError, AttributeError):
        return False
    if hints.get("readOnlyHint") is True:
        return False
    return bool(hints.get("destructiveHint", hints.get("readOnlyHint") is False))
