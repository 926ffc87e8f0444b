"""uvicorn around the application: listen, announce, shut down gracefully."""

from __future__ import annotations

import gc
import signal
import socket
import sys
from types import FrameType
from typing import Any

import uvicorn

from pipelines.serve.app import make_app
from pipelines.serve.gateway import Gateway
from pipelines.serve.http.connections import ConnectionTable, make_protocol
from pipelines.serve.settings import ServeConfig
from retrievers.errors import BadInput

ENGINES = {
    "vllm": "vLLM, managed",
    "onnx": "ONNX Runtime GenAI, in this process",
    "servers": "servers elsewhere",
    "transformers": "transformers, in this process",
    "rules": "rules",
}
SWITCH_SECONDS = 0.001
"""After this time a busy thread lets the others run; Python's default is five times as long."""
SWEEP_TICKS = 5
"""A tick of uvicorn is a tenth of a second."""


class Server(uvicorn.Server):
    """A server that announces its address, and drains before it stops."""

    def __init__(self, gateway: Gateway) -> None:
        config = gateway.config
        self._table = ConnectionTable(config.connections, gateway.metrics)
        settings = uvicorn.Config(
            make_app(gateway),
            http=make_protocol(self._table),
            timeout_keep_alive=config.connections.idle_seconds,  # type: ignore[arg-type]  # any number will do
            host=config.host,
            port=config.port,
            access_log=False,  # the guard writes its own, without the users' words
            server_header=False,
            date_header=False,
            log_config=None,
            log_level="warning",
            proxy_headers=False,
            ws="none",
            timeout_graceful_shutdown=max(1, round(config.drain_seconds)),
        )
        super().__init__(settings)
        self._gateway = gateway

    @property
    def port(self) -> int:
        """The port, once the server listens."""
        return int(self.servers[0].sockets[0].getsockname()[1])

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, then announce the address and the parts in one line."""
        await super().startup(sockets)
        if self.started:
            config, catalogue, rewriter = self._gateway.config, self._gateway.catalogue, self._gateway.rewriter
            index, host = catalogue.current.index, f"[{config.host}]" if ":" in config.host else config.host
            engine = f"rewriter by {ENGINES[rewriter.settings.engine.kind]}" if rewriter else "no rewriter"
            self.announce(
                f"rewrite-serve: http://{host}:{self.port}, {len(index.tools)} tools, {catalogue.retriever}, "
                f"fingerprint {index.fingerprint}, {engine}"
            )

    async def on_tick(self, counter: int) -> bool:
        """Close connections that take too long, twice per second."""
        if counter % SWEEP_TICKS == 0:
            self._table.sweep()
        return await super().on_tick(counter)

    def announce(self, line: str) -> None:
        """Show the line; a command prints it."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Turn /readyz to 503 and finish running requests. A second Ctrl-C stops at once."""
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = self._gateway.draining = True


def tune_interpreter() -> None:
    """Shorten the pauses of a process that does nothing but serve: other threads hand over sooner, and the garbage
    collector, which stops all of them, leaves out what was loaded at the start (0.3 s for the sample)."""
    sys.setswitchinterval(SWITCH_SECONDS)
    gc.collect()
    gc.freeze()
    gc.enable()


def check_port(config: ServeConfig) -> None:
    """Refuse an address that is in use, before anything is loaded."""
    try:
        family = socket.getaddrinfo(config.host, config.port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family[0]) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            address: Any = family[4]
            probe.bind(address)
    except OSError as error:
        raise BadInput(
            f"the server cannot listen on {config.host}:{config.port} ({error.strerror}); set another host or port"
        ) from error
