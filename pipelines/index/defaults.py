"""Defaults of retriever, threshold and index, chosen on dev: docs/choosing.md has the figures."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from pathlib import Path

from pipelines.data.sample_data import SAMPLE, sample_folder
from pipelines.models import cache_folder
from retrievers.files import disk_room
from retrievers.index import Index
from retrievers.index import manifest as manifests
from retrievers.index.manifest import Manifest
from retrievers.registry import RetrieverSettings
from retrievers.settings import BM25Settings, DenseSettings, HybridSettings

log = logging.getLogger("rewrite-serve")
AUTO = "auto"
UNTRAINED = ("hybrid", "dense", "milvus", "bm25")
"""Kinds without training, the best first."""
SAMPLE_THRESHOLD = 0.5
"""Keeps .98 of the sample's dev utterances that need a tool; not meant for other indexes."""

SAMPLE_EXAMPLES = (
    "got to be in Manchester by 10 on Tuesday, pick a train from Sheffield and pop it in my diary",
    "On an Agnès Varda kick. Everything she directed, and which ones I can stream in France?",
    "teenager. my credit card. game skins. make it stop",
    "¿Dónde puedo ver El laberinto del fauno sin pagar? Vivo en México",
    "Wann ist der Strom heute Nacht am billigsten, PLZ 04109",
    "看看家里还有哪些灯开着，全给我关掉",
    "thanks, that was all I needed",
)
"""Requests to the sample whose tools are found, in four languages; the last one needs no tool."""


def default_retrievers() -> dict[str, RetrieverSettings]:
    """The retrievers of a config that names none: those of the best untrained row of the README's table."""
    return {
        "bm25": BM25Settings(),
        "dense": DenseSettings(model="bundled:tools"),
        "multilingual": DenseSettings(model="bundled:tools-multilingual"),
        "hybrid": HybridSettings(of=("bm25", "dense"), other_languages=("multilingual",)),
    }


def best_retriever(index: Index) -> str:
    """Default retriever of an index; of equals, the first in the manifest."""
    parts = index.manifest.retrievers
    return min(parts, key=lambda name: (_priority(index.manifest, name), list(parts).index(name)))


def choose_retriever(index: Index, name: str) -> str:
    """The retriever that a command uses: the one named, or the default of the index for `auto`."""
    return best_retriever(index) if name == AUTO else name


def _priority(manifest: Manifest, name: str) -> int:
    settings = manifest.retrievers[name].settings
    kind, learned = settings["kind"], settings.get("train") is not None
    if kind == "masstool" and learned:
        return 0  # has votes of earlier queries, and a detector
    if kind == "dense" and learned:
        return 1
    if kind in UNTRAINED:
        return 2 + UNTRAINED.index(kind)
    return 10  # generative models are used by name only: they do not find tools they were not trained on


def default_threshold(reference: str) -> float | None:
    """Default threshold of the detector; None: the one that dev chose for the index."""
    return SAMPLE_THRESHOLD if reference == SAMPLE else None


def default_examples(reference: str) -> tuple[str, ...]:
    """Requests that a page offers to begin with; none for other indexes than the sample."""
    return SAMPLE_EXAMPLES if reference == SAMPLE else ()


def index_folder(reference: str) -> Path:
    """Folder of an index; `bundled:sample` is a copy of the one that ships, made once, which may be changed."""
    if reference != SAMPLE:
        return Path(reference).expanduser()
    shipped = sample_folder() / "index"
    _, fingerprint = manifests.read(shipped)
    target = cache_folder() / "indexes" / f"sample-{fingerprint}"
    if not _readable(target):
        with disk_room(target.parent):
            target.parent.mkdir(parents=True, exist_ok=True)
            work = Path(tempfile.mkdtemp(prefix=".part-", dir=target.parent))
            try:
                shutil.copytree(shipped, work, dirs_exist_ok=True)
                _move_into_place(work, target)
            finally:
                shutil.rmtree(work, ignore_errors=True)
    return target


def _move_into_place(work: Path, target: Path) -> None:
    try:
        os.rename(work, target)
    except OSError:
        if _readable(target):  # another process was first
            return
        if not target.exists():
            raise
        # Damaged. It is kept, since tools may have been added to it.
        aside = tempfile.mkdtemp(prefix=f"{target.name}.damaged-", dir=target.parent)
        os.rename(target, Path(aside) / target.name)
        log.warning("the copy of the sample in %s was damaged; it was moved to %s and replaced", target, aside)
        os.rename(work, target)


def _readable(folder: Path) -> bool:
    try:
        manifests.read(folder)
    except OSError:
        return False
    return True
