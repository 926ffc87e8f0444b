"""A ToolWeaver behind the server: the same rankings, and a catalogue that changes while it answers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from generative_toys import DATA, TOOLS, save_toy_model
from serving import Running
from weaver_toys import QUICK, toolweaver

from pipelines.context import make_context
from retrievers.generative.retriever import GenerativeRetriever
from retrievers.index import Index, build


def test_it_answers_as_in_process_and_follows_the_catalogue(serve: Callable[..., Running], tmp_path: Path) -> None:
    context, folder = make_context("cpu"), tmp_path / "said"
    settings = {"toolweaver": toolweaver(save_toy_model(tmp_path / "toy"), QUICK)}
    build(folder, TOOLS, settings, context, training={"toolweaver": [DATA]})
    server = serve(index=str(folder), retriever="toolweaver")
    asked = ["please blorp", "a zindle"]
    theirs = Index(folder, context).retriever("toolweaver").search(asked, 20)
    assert [_ids(server, text) for text in asked] == [list(ranking.ids) for ranking in theirs]
    assert server.client.delete("/v1/tools/t0").json()["removed"] == 1
    assert server.client.put("/v1/tools/new", json={"name": "mimsy", "description": "Mimsy."}).json()["added"] == 1
    assert sorted(_ids(server, asked[0])) == sorted(["new", *(tool.id for tool in TOOLS[1:])])
    retriever = Index(folder, context).retriever("toolweaver")
    assert isinstance(retriever, GenerativeRetriever)
    assert len(set(retriever.branches.values())) == len(TOOLS)


def _ids(server: Running, text: str) -> list[str]:
    return [tool["id"] for tool in server.search(text, k=20)["results"][0]["tools"]]
