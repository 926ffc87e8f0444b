"""`rewrite-serve`: the server, and keys for it."""

from __future__ import annotations

import argparse
import logging
import sys
from typing import Any

from pipelines import config as configs
from pipelines.serve.keys import make_key
from pipelines.serve.settings import ServeConfig
from retrievers.errors import BadInput
from rewrite.errors import Unfit


def serve(arguments: argparse.Namespace) -> int:
    config = configs.asked(arguments, ServeConfig)
    if config is None:
        return 0
    try:
        import uvicorn

        from pipelines.serve.app import make_app
        from pipelines.serve.gateway import Gateway
    except ModuleNotFoundError as error:
        raise Unfit(f"serving needs {error.name}; run `pip install 'toolrewrite[serve]'`") from error
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    logging.getLogger("httpx").setLevel(logging.WARNING)  # it tells every URL
    gateway = Gateway(config, arguments.device)
    settings = uvicorn.Config(
        make_app(gateway),
        host=config.host,
        port=config.port,
        access_log=False,
        server_header=False,
        date_header=False,
        log_config=None,
        log_level="warning",
        proxy_headers=False,
        timeout_graceful_shutdown=max(1, round(config.drain_seconds)),
        backlog=config.limits.in_flight * 4,
    )

    class Server(uvicorn.Server):
        """Says that it is up, and that it is going."""

        async def startup(self, sockets: Any = None) -> None:
            await super().startup(sockets)
            if self.started:
                port = self.servers[0].sockets[0].getsockname()[1]
                print(_line(gateway, port), flush=True)

        def handle_exit(self, sig: int, frame: Any) -> None:
            gateway.draining = True
            super().handle_exit(sig, frame)

    server = Server(settings)
    try:
        server.run()
    except SystemExit as error:
        raise BadInput(f"the server cannot listen on {config.host}:{config.port}; is the port taken?") from error
    return 0


def _line(gateway: Any, port: int) -> str:
    """What runs here, in one line."""
    config, index = gateway.config, gateway.catalogue.current.index
    how = "no rewriter"
    if gateway.models is not None:
        names = {
            "vllm": "vLLM, managed",
            "servers": "servers elsewhere",
            "transformers": "transformers, in this process",
        }
        how = f"rewriter by {names[gateway.models.engine]}"
    return (
        f"rewrite-serve: http://{config.host}:{port}, {len(index.tools)} tools, {config.retriever}, "
        f"fingerprint {index.fingerprint}, {how}"
    )


def key(arguments: argparse.Namespace) -> int:
    made, hashed = make_key()
    scopes = ", ".join(arguments.scope or ["search"])
    print(f"the key, shown this once:  {made}")
    print("put this under `keys` in the config:")
    print(f"  - {{name: {arguments.name}, sha256: {hashed}, scopes: [{scopes}]}}")
    return 0
