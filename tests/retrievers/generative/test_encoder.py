"""Codes made of an encoder's vectors: a later tool is placed by the same encoder, or not at all."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from doubles import CountingEncoder, state, tiny_model
from generative_toys import DATA, TOOLS, save_toy_model, toolgen
from weaver_toys import QUICK, toolweaver

from retrievers.dense.encoder import fingerprint
from retrievers.errors import BadInput
from retrievers.index import Index, add, build
from retrievers.kind import Context
from retrievers.registry import RetrieverSettings
from retrievers.types import Tool
from reward.metrics import measure_rankings

NEW = Tool("new", "mimsy_tool", "Does mimsy things.")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    save_toy_model(folder / "toy")
    tiny_model(folder / "one")
    tiny_model(folder / "other", b"other weights")
    return folder


def world(models: Path, encoder: str) -> Context:
    """Where `encoder` is the model of that folder."""
    known = {name: CountingEncoder(name) for name in (fingerprint(models / name) for name in ("one", "other"))}
    return Context(
        lambda reference: models / (encoder if reference == "encoder" else "toy"),
        encoders={**known},
        measure=measure_rankings,
    )


def kind(name: str, models: Path) -> RetrieverSettings:
    if name == "hierarchical":
        return replace(toolgen(models / "toy", QUICK, name), encoder="encoder")
    return toolweaver(models / "toy", QUICK, encoder="encoder")


@pytest.mark.parametrize("name", ["hierarchical", "toolweaver"])
def test_a_later_tool_is_placed_by_the_same_encoder_or_not_at_all(name: str, models: Path, tmp_path: Path) -> None:
    folder, settings = tmp_path / "index", {"said": kind(name, models)}
    build(folder, TOOLS, settings, world(models, "one"), training={"said": [DATA]})
    before = state(folder)
    both = f"{fingerprint(models / 'one')}.*{fingerprint(models / 'other')}"
    with pytest.raises(BadInput, match=f"codes were made with encoder {both}.*build the index again"):
        add(folder, [NEW], world(models, "other"))
    assert state(folder) == before
    assert len(Index(folder, world(models, "other")).retriever("said").search(["blorp"], 8)[0]) == 8

    more = replace(DATA, ids=(*DATA.ids, "new"), documents=(*DATA.documents, NEW.description))
    with pytest.raises(BadInput, match=both):
        build(folder, [*TOOLS, NEW], settings, world(models, "other"), training={"said": [more]}, resume=True)
    add(folder, [NEW], world(models, "one"))
    assert "new" in Index(folder, world(models, "one")).retriever("said").search(["mimsy"], 9)[0].ids


def test_what_is_trained_further_still_knows_its_encoder(models: Path, tmp_path: Path) -> None:
    folder, settings = tmp_path / "index", {"said": kind("hierarchical", models)}
    build(folder, TOOLS, settings, world(models, "one"), training={"said": [DATA]})
    build(folder, TOOLS, settings, world(models, "one"), training={"said": [DATA]}, resume=True)
    with pytest.raises(BadInput, match="use the same encoder"):
        add(folder, [NEW], world(models, "other"))
