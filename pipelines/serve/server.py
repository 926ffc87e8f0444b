"""uvicorn around the application: listen, announce, shut down gracefully."""

from __future__ import annotations

import signal
import socket
from types import FrameType
from typing import Any

import uvicorn

from pipelines.serve.app import make_app
from pipelines.serve.gateway import Gateway
from pipelines.serve.settings import ServeConfig
from retrievers.errors import BadInput

ENGINES = {
    "vllm": "vLLM, managed",
    "servers": "servers elsewhere",
    "transformers": "transformers, in this process",
    "rules": "rules",
}


class Server(uvicorn.Server):
    """A server that announces its address, and drains before it stops."""

    def __init__(self, gateway: Gateway) -> None:
        config = gateway.config
        settings = uvicorn.Config(
            make_app(gateway),
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
            engine = f"rewriter by {ENGINES[rewriter.settings.backend.kind]}" if rewriter else "no rewriter"
            self.announce(
                f"rewrite-serve: http://{host}:{self.port}, {len(index.tools)} tools, {catalogue.retriever}, "
                f"fingerprint {index.fingerprint}, {engine}"
            )

    def announce(self, line: str) -> None:
        """Show the line; a command prints it."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Turn /readyz to 503 and finish running requests. A second Ctrl-C stops at once."""
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = self._gateway.draining = True


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
