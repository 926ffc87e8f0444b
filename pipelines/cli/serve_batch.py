"""`rewrite-serve` with its commands `mcp` and `key`, and `rewrite-batch`."""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pipelines import config as configs
from pipelines.cli.flags import DEFAULT_SERVER
from rewrite.errors import Interrupted, RewriteError

if TYPE_CHECKING:
    from pipelines.serve.settings import ServeConfig


def run_serve(arguments: argparse.Namespace) -> int:
    gc.disable()  # until `tune_interpreter`: nearly all that a start makes stays, and looking through it takes time
    config = _load_config(arguments)
    if config is None:
        return 0
    with _needs_libraries():
        from pipelines.serve.gateway import Gateway
        from pipelines.serve.server import Server, check_port, tune_interpreter
    check_port(config)

    class PrintingServer(Server):
        """Prints its address."""

        def announce(self, line: str) -> None:
            print(line, flush=True)
            if arguments.open:
                open_page(line.split()[1].rstrip(","))

    server = PrintingServer(Gateway(config, arguments.device))
    tune_interpreter()
    server.run()
    return 0 if server.started else 1


def open_page(url: str) -> None:
    """Open the page in a browser with windows, where there is one; a browser of the terminal would take it over."""
    if sys.platform in ("darwin", "win32") or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
        import webbrowser

        webbrowser.open(url)
    else:
        print(f"there is no desktop here; open {url} in a browser, Ctrl-C ends the server", flush=True)


def run_mcp(arguments: argparse.Namespace) -> int:
    config = _load_config(arguments)
    if config is None:
        return 0
    with _needs_libraries():
        from pipelines.serve.gateway import Gateway
        from pipelines.serve.mcp.server import serve_stdio
    asyncio.run(serve_stdio(Gateway(config, arguments.device)))
    return 0


def _load_config(arguments: argparse.Namespace) -> ServeConfig | None:
    """The config; of an index folder, the default one with that index and the rewriter beside it."""
    from pipelines.serve.settings import ServeConfig

    _start_logging()
    if arguments.config.is_dir():
        from pipelines.serve.index_config import index_overrides

        arguments.set = [*index_overrides(arguments.config, arguments.set), *arguments.set]
        arguments.config = DEFAULT_SERVER
    return configs.load_from_args(arguments, ServeConfig)


@contextmanager
def _needs_libraries() -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        raise RewriteError(f"serving needs {error.name}; run `pip install 'toolrewrite[serve]'`") from error


def _start_logging() -> None:
    from pipelines.serve.log_writer import LogWriter

    if not logging.getLogger().handlers:
        form = "%(asctime)s %(levelname)s %(message)s"
        logging.basicConfig(level=logging.INFO, format=form, handlers=[LogWriter(sys.stderr)])
    logging.captureWarnings(True)
    for name in ("httpx", "httpx2", "mcp", "sentence_transformers"):  # they log every URL, session and folder
        logging.getLogger(name).setLevel(logging.WARNING)


def run_key(arguments: argparse.Namespace) -> int:
    from pipelines.serve.keys import make_key

    key, hashed = make_key()
    scopes = ", ".join(arguments.scope or ["search"])
    print(f"the key, shown only now:  {key}")
    print("put this under `keys` in the config:")
    print(f"  - {{name: {arguments.name}, sha256: {hashed}, scopes: [{scopes}]}}")
    return 0


def run_batch(arguments: argparse.Namespace) -> int:
    from pipelines.batch.api import run
    from pipelines.batch.settings import BatchConfig

    config = configs.load_from_args(arguments, BatchConfig)
    if config is None:
        return 0
    piped = arguments.output == "-"
    try:
        summary = run(
            arguments.input,
            arguments.output,
            config,
            arguments.engine,
            arguments.device,
            arguments.fresh,
            arguments.retry_errors,
        )
    except KeyboardInterrupt:
        way = "" if piped else "; finished rows are kept: run the same command again to continue"
        raise Interrupted(f"interrupted{way}") from None
    print(summary.text(), file=sys.stderr if piped else sys.stdout)
    if summary.bad and not piped:
        print(f"{summary.output}.errors.jsonl lists the bad rows; fix them and run again with --retry-errors")
    return 0
