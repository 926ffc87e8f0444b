"""The examples of the web page, README, tutorial and demo find the right tools at the places that are claimed."""

from __future__ import annotations

import html
import re
from pathlib import Path

import pytest
from paths import ROOT

from pipelines import config as configs
from pipelines.data.sample_data import sample_folder
from pipelines.index.build import IndexConfig, read_tools
from pipelines.index.defaults import choose_retriever
from pipelines.search import ToolSearch
from retrievers.index import Index, build
from retrievers.kind import Context
from retrievers.types import Tool

PAGE = "pipelines/serve/page/assets/index.html"
SATURN = "my son wants to see Saturn tonight, and I want to know if it will be overcast at nine"
COAT = "will I need a coat tonight"
FILM = "We loved Twelve Angry Men. What's like it and free to stream? US"
FERRY = (
    "is the ferry even going tonight in this wind? there's talk of a red warning for the west coast. "
    "next one from Oban pls"
)
ONION = (
    "mi perra se comió una cebolla entera, pesa 6 kilos, ¿es grave? y por si acaso qué urgencias hay cerca de Getafe"
)
UMBRELLA, NOVEL = "I left my umbrella in the changing room", "can I have that novel for another week"
DUE = "my book is due tomorrow and I haven't finished it"


def text_of(path: str) -> str:
    """The text of a file, its lines joined."""
    return " ".join(html.unescape((ROOT / path).read_text(encoding="utf-8")).replace("\\\n", " ").split())


def found(index: Index, utterance: str, retriever: str = "auto", k: int = 2) -> list[str]:
    """The first tools, as a user gets them."""
    [ranking] = ToolSearch(index, choose_retriever(index, retriever)).search([utterance], k)
    return list(ranking.ids)


@pytest.fixture(scope="module")
def shipped(context: Context) -> Index:
    """The index of `rewrite-serve` without a config."""
    return Index(sample_folder() / "index", context)


@pytest.fixture(scope="module")
def mine(context: Context, tmp_path_factory: pytest.TempPathFactory) -> Index:
    """The index of the tutorial."""
    config = configs.load(ROOT / "configs/index/tutorial.yaml", IndexConfig)
    folder = tmp_path_factory.mktemp("tutorial")
    build(folder, read_tools((str(ROOT / "docs/examples/leisure-openapi.yaml"),)), config.retrievers, context)
    return Index(folder, context)


def test_the_example_of_the_page_and_of_the_reference(shipped: Index) -> None:
    assert re.findall(r'id="utterance"[^>]*placeholder="e\.g\. ([^"]*)"', text_of(PAGE)) == [SATURN]
    assert SATURN in text_of("pipelines/serve/schemas/search.py")
    assert found(shipped, SATURN) == ["quarkbench/sky", "nimbus_ledger/v2/forecast/hourly"]


def test_the_examples_of_the_readme(shipped: Index) -> None:
    readme = text_of("README.md")
    tools = ["reelharbor/whereToWatch", "reelharbor/findSimilarTitles"]
    assert all(text in readme for text in (COAT, "`v2/forecast/hourly`", FILM, *tools))
    for retriever in ("auto", "hybrid"):
        assert found(shipped, COAT, retriever, 1) == ["nimbus_ledger/v2/forecast/hourly"]
    assert found(shipped, FILM, "hybrid") == tools


def test_the_searches_of_the_tutorial(mine: Index) -> None:
    page = text_of("docs/tutorial.md")
    assert all(text in page for text in (UMBRELLA, NOVEL, DUE))
    assert found(mine, UMBRELLA, k=1) == ["leisure/reportLost"]
    assert found(mine, UMBRELLA, "bm25", 1) == ["leisure/bookRoom"]
    for retriever in ("bm25", "dense", "hybrid"):
        assert found(mine, NOVEL, retriever, 1) == ["leisure/renewLoan"]
    assert found(mine, DUE, k=1) != ["leisure/renewLoan"], "the tutorial says that this is hard"


def test_the_searches_of_the_demo(context: Context, sample_tools: list[Tool], tmp_path: Path) -> None:
    demo = text_of("Makefile")
    assert FERRY in demo
    assert ONION in demo
    config = configs.load(ROOT / "configs/index/demo.yaml", IndexConfig)
    parts = {name: config.retrievers[name] for name in ("lexical", "tools", "hybrid", "multilingual", "languages")}
    build(tmp_path / "index", sample_tools, parts, context)
    index = Index(tmp_path / "index", context)
    for retriever in ("hybrid", "languages"):
        assert set(found(index, FERRY, retriever)) == {"raillark/next_departures", "nimbus_ledger/v2/alerts"}
    assert found(index, ONION, "languages") == ["porchlight/pet-safe-check", "porchlight/vet-finder"]
