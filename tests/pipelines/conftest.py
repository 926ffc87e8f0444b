"""Fixtures: a served index, a model server, PostgreSQL."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from doubles import BM25_ONLY, ModelServer, plain_context, varied_tools
from postgres import BINARIES, Postgres
from serving import Running, running

from pipelines.database.settings import DatabaseSettings
from retrievers.index import build


@pytest.fixture
def index(tmp_path: Path) -> Path:
    """A lexical index of sixty tools."""
    build(tmp_path / "index", varied_tools(60), BM25_ONLY, plain_context())
    return tmp_path / "index"


@pytest.fixture
def serve(index: Path) -> Iterator[Callable[..., Running]]:
    """Starts servers before that index; all of them end with the test."""
    with ExitStack() as stack:
        yield lambda **config: stack.enter_context(running({"index": str(index), "retriever": "bm25", **config}))


@pytest.fixture
def model() -> Iterator[ModelServer]:
    """A server in a model's place."""
    made = ModelServer()
    yield made
    made.stop()


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A database server of the tests' own."""
    if BINARIES is None:
        pytest.skip("PostgreSQL is not installed: apt install postgresql")
    made = Postgres()
    yield made
    made.stop()


@pytest.fixture
def shared(postgres: Postgres, monkeypatch: pytest.MonkeyPatch) -> DatabaseSettings:
    """An empty place in it, named as a config names it."""
    postgres.start()
    monkeypatch.setenv("TOOLREWRITE_DATABASE", postgres.dsn)
    return DatabaseSettings(schema=f"test_{time.monotonic_ns()}", start_seconds=5.0)
