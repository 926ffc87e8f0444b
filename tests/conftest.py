"""What all tests share: no hub, no user's cache, one thread a test."""

from __future__ import annotations

import os

os.environ.update(HF_HUB_OFFLINE="1", OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", TOKENIZERS_PARALLELISM="false")

from pathlib import Path

import pytest

from pipelines.index import make_context, sample_folder
from retrievers.catalogue import read_catalogue
from retrievers.kinds import Context
from retrievers.types import Tool


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache of the tests' own; vectors computed by one test serve the others."""
    folder = tmp_path_factory.mktemp("cache")
    os.environ["TOOLREWRITE_CACHE"] = str(folder)
    return folder


@pytest.fixture(scope="session")
def context(cache: Path) -> Context:
    return make_context("cpu")


@pytest.fixture(scope="session")
def sample_tools() -> list[Tool]:
    return read_catalogue(sample_folder())


@pytest.fixture(scope="session")
def some_tools(sample_tools: list[Tool]) -> list[Tool]:
    """A few tools of every provider: small enough to embed in a moment."""
    return sample_tools[::4]
