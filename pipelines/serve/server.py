"""uvicorn around the application: how it listens, and how it goes."""

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

NAMES = {
    "vllm": "vLLM, managed",
    "servers": "servers elsewhere",
    "transformers": "transformers, in this process",
    "rules": "rules",
}


class Server(uvicorn.Server):
    """Says that it is up, and that it is going."""

    def __init__(self, gateway: Gateway) -> None:
        config = gateway.config
        settings = uvicorn.Config(
            make_app(gateway),
            host=config.host,
            port=config.port,
            access_log=False,  # the guard writes its own, without what users say
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
        """Where it listens, once it does."""
        return int(self.servers[0].sockets[0].getsockname()[1])

    def line(self) -> str:
        """What runs here, in one line."""
        config, index, models = self._gateway.config, self._gateway.catalogue.current.index, self._gateway.models
        host = f"[{config.host}]" if ":" in config.host else config.host
        how = f"rewriter by {NAMES[models.engine]}" if models else "no rewriter"
        return (
            f"rewrite-serve: http://{host}:{self.port}, {len(index.tools)} tools, {self._gateway.catalogue.retriever}, "
            f"fingerprint {index.fingerprint}, {how}"
        )

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listens, and says so."""
        await super().startup(sockets)
        if self.started:
            self.announce(self.line())

    def announce(self, line: str) -> None:
        """Where the line goes."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """From now on nobody is sent here; who has asked is answered. A second Ctrl-C does not wait for that."""
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = self._gateway.draining = True


def check_port(config: ServeConfig) -> None:
    """Refuses an address that is taken before anything is loaded."""
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
