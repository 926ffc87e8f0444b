"""Progress as lines in a log, and embedding a text only once."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipelines.index.build import IndexConfig, build_index
from pipelines.models import find_model
from retrievers import progress
from retrievers.dense.encoder import Encoder
from retrievers.kind import Context
from retrievers.progress import Progress, duration
from retrievers.settings import BM25Settings, DenseSettings, HybridSettings
from retrievers.types import Tool

TOOLS = [Tool(f"t{number}", f"tool {number}", f"Finds thing {number} by name and place.") for number in range(150)]


@pytest.fixture
def embedded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts that a model was asked to embed."""
    texts: list[str] = []
    encode = Encoder._encode

    def counted(self: Encoder, method: str, wanted: Sequence[str]) -> np.ndarray:
        texts.extend(wanted)
        return encode(self, method, wanted)

    monkeypatch.setattr(Encoder, "_encode", counted)
    return texts


def build(folder: Path, tools: Sequence[Tool], show_progress: bool = False) -> None:
    retrievers: dict[str, Any] = {
        "bm25": BM25Settings(),
        "dense": DenseSettings(),
        "again": DenseSettings(ann_above=10_000),
        "hybrid": HybridSettings(of=("bm25", "dense")),
    }
    config = IndexConfig(str(folder / "index"), ("tools.json",), retrievers)
    context = Context(find_model, folder / "cache", show_progress, "cpu")
    build_index(config, context, tools=tools)


def test_a_text_is_embedded_once(tmp_path: Path, embedded: list[str]) -> None:
    """By two retrievers of one build, and in later versions of the catalogue."""
    twins = [*TOOLS, replace(TOOLS[0], id="twin")]
    build(tmp_path, twins)
    assert len(embedded) == len(set(embedded)) == len(TOOLS)
    embedded.clear()
    changed = [replace(TOOLS[0], description="Does something else now."), *TOOLS[1:]]
    build(tmp_path, changed)
    assert len(embedded) == 1


def test_an_interrupted_build_keeps_its_vectors(
    tmp_path: Path, embedded: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    encode = Encoder._encode

    def interrupted(self: Encoder, method: str, wanted: Sequence[str]) -> np.ndarray:
        if len(embedded) >= 128:
            raise KeyboardInterrupt
        return encode(self, method, wanted)

    with monkeypatch.context() as patch:
        patch.setattr(Encoder, "_encode", interrupted)
        with pytest.raises(KeyboardInterrupt):
            build(tmp_path, TOOLS)
    embedded.clear()
    build(tmp_path, TOOLS)
    assert len(embedded) == len(TOOLS) - 128


def test_a_build_reports_what_it_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.0)
    build(tmp_path, TOOLS, show_progress=True)
    lines = capsys.readouterr().err.splitlines()
    assert lines[:2] == ["indexing 150 tools for bm25, dense, again, hybrid", "embedding with bundled:tools: 150 tools"]
    assert [line.split(",")[0] for line in lines[2:5]] == [
        "embedding with bundled:tools: 64 of 150 tools",
        "embedding with bundled:tools: 128 of 150 tools",
        "embedding with bundled:tools: 150 of 150 tools",
    ]
    assert all("tools/s" in line and " left" in line for line in lines[2:5])
    assert lines[5].startswith("embedding with bundled:tools: done in ")
    assert len(lines) == 6, "the second retriever embeds nothing"


def test_a_terminal_gets_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with Progress("embedding", 3, "tools", True) as bar:
        for _ in range(3):
            bar.add(note="a note")
    assert "embedding: 100%" in terminal.getvalue()
    assert "a note" in terminal.getvalue()


def test_the_remaining_time_follows_the_effort(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    stage = Progress("embedding", 10, "tools", True, effort=100.0)
    now[0] += 30
    stage.add(2, effort=60.0)
    assert capsys.readouterr().err.splitlines()[-1] == "embedding: 2 of 10 tools, 0.0667 tools/s, 20 s left"
    resumed = Progress("training", 10, "epochs", True, done=4)
    now[0] += 30
    resumed.add(3)
    assert capsys.readouterr().err.splitlines() == [
        "training: 6 epochs",
        "training: 7 of 10 epochs, 0.1 epochs/s, 30 s left",
    ]
    silent = Progress("training", 10, "epochs", False)
    silent.add(10)
    silent.close()
    assert capsys.readouterr().err == ""
    assert [duration(seconds) for seconds in (40, 759, 9000)] == ["40 s", "13 min", "2.5 h"]
