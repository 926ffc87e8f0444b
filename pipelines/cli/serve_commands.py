"""`rewrite-serve`: the server, and keys for it."""

from __future__ import annotations

import argparse
import logging
import sys

from pipelines import config as configs
from pipelines.serve.keys import make_key
from pipelines.serve.settings import ServeConfig
from rewrite.errors import RewriteError


def serve(arguments: argparse.Namespace) -> int:
    config = configs.load_from_args(arguments, ServeConfig)
    if config is None:
        return 0
    try:
        from pipelines.serve.gateway import Gateway
        from pipelines.serve.server import Server, check_port
    except ModuleNotFoundError as error:
        raise RewriteError(f"serving needs {error.name}; run `pip install 'toolrewrite[serve]'`") from error
    check_port(config)
    _log()

    class Announcing(Server):
        """Tells the terminal."""

        def announce(self, line: str) -> None:
            print(line, flush=True)

    server = Announcing(Gateway(config, arguments.device))
    server.run()
    return 0 if server.started else 1


def mcp(arguments: argparse.Namespace) -> int:
    config = configs.load_from_args(arguments, ServeConfig)
    if config is None:
        return 0
    try:
        import asyncio

        from pipelines.serve.gateway import Gateway
        from pipelines.serve.mcp.server import serve_stdio
    except ModuleNotFoundError as error:
        raise RewriteError(f"serving needs {error.name}; run `pip install 'toolrewrite[serve]'`") from error
    _log()
    asyncio.run(serve_stdio(Gateway(config, arguments.device)))
    return 0


def _log() -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    logging.captureWarnings(True)
    for name in ("httpx", "httpx2", "mcp", "sentence_transformers"):  # they tell every URL, session and folder
        logging.getLogger(name).setLevel(logging.WARNING)


def key(arguments: argparse.Namespace) -> int:
    made, hashed = make_key()
    scopes = ", ".join(arguments.scope or ["search"])
    print(f"the key, shown this once:  {made}")
    print("put this under `keys` in the config:")
    print(f"  - {{name: {arguments.name}, sha256: {hashed}, scopes: [{scopes}]}}")
    return 0
