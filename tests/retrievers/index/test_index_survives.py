"""kill -9 at any moment, two writers at once, readers in between: always the old index or the new one.

The killing is real. A driver process forks a child for every point, the child runs one operation and dies by SIGKILL:
before its n-th step on the disk (mkdir, open, write, flush, rename, unlink; a write is torn in half first), for every n
until the operation gets through, and from outside after random times. What is left is looked at in the tests.
"""

from __future__ import annotations

import atexit
import functools
import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from doubles import (
    BM25_ONLY,
    LEARNING,
    LESSONS,
    MEMORY,
    QUERIES,
    changed,
    counting_context,
    learn_at_once,
    plain_context,
    state,
    tiny_model,
    varied_tools,
)
from killing import die_before_step, in_a_child, started
from waiting import PATIENCE, until

from pipelines.cli import main as cli
from pipelines.models import find_model
from retrievers.dense import encoder
from retrievers.dense.retriever import DenseKind
from retrievers.errors import BadInput, IndexMissing, OutOfDisk
from retrievers.files import writer_lock
from retrievers.index import Change, Index, add, build, reader, remove, segments, verify, writer
from retrievers.index import manifest as manifests
from retrievers.kind import Context
from retrievers.settings import BM25Settings, DenseSettings, HybridSettings
from retrievers.types import Ranking, Tool

TOOLS = varied_tools(80)
IDS = [tool.id for tool in TOOLS]
CONTEXT = plain_context()
RANDOM_KILLS = 6
"""A scenario, beside the kills at every step."""


class Scenario(NamedTuple):
    """An operation on an index, and how the index came about."""

    prepare: Callable[[Path], object]
    operate: Callable[[Path], Change]


def _build(folder: Path, tools: list[Tool]) -> Change:
    return build(folder, tools, BM25_ONLY, CONTEXT)


def _folding(operate: Callable[[Path], Change]) -> Callable[[Path], Change]:
    """The operation with so little patience for segments that it folds them."""

    def operated(folder: Path) -> Change:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(segments, "MAX_SEGMENTS", 2)
            return operate(folder)

    return operated


def _in_segments(*sizes: int) -> Callable[[Path], object]:
    def prepare(folder: Path) -> None:
        _build(folder, TOOLS[: sizes[0]])
        for end, size in zip(itertools.accumulate(sizes), (*sizes[1:], 0), strict=True):
            if size:
                add(folder, TOOLS[end : end + size], CONTEXT)

    return prepare


@functools.cache
def learning_context() -> Context:
    """A world with a model and what it becomes by training."""
    place = Path(tempfile.mkdtemp(dir=MEMORY))
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    models = tiny_model(place / "model"), tiny_model(place / "trained", b"tuned weights")
    return counting_context(models[0], None, models[1])[0]


def _learn(folder: Path, tools: list[Tool]) -> Change:
    """A build that trains first, always with the same outcome."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DenseKind, "train", learn_at_once)
        return build(folder, tools, LEARNING, learning_context(), training=LESSONS)


SCENARIOS = {
    "first build": Scenario(lambda folder: None, lambda folder: _build(folder, TOOLS[:60])),
    "build over another": Scenario(_in_segments(60), lambda folder: _build(folder, TOOLS[20:70])),
    "add": Scenario(_in_segments(60), lambda folder: add(folder, TOOLS[60:65], CONTEXT)),
    "update": Scenario(
        _in_segments(60), lambda folder: add(folder, [*map(changed, TOOLS[10:15]), *TOOLS[58:63]], CONTEXT)
    ),
    "add, folding all": Scenario(
        _in_segments(30, 15, 10), _folding(lambda folder: add(folder, [changed(TOOLS[0]), *TOOLS[55:60]], CONTEXT))
    ),
    "add, folding the tail": Scenario(
        _in_segments(58, 1, 1), _folding(lambda folder: add(folder, TOOLS[60:61], CONTEXT))
    ),
    "build with training": Scenario(lambda folder: None, lambda folder: _learn(folder, TOOLS[:5])),
    "build with training over another": Scenario(
        lambda folder: _learn(folder, TOOLS[:5]), lambda folder: _learn(folder, TOOLS[2:7])
    ),
    "remove": Scenario(_in_segments(50, 10), lambda folder: remove(folder, IDS[5:10] + IDS[52:54], CONTEXT)),
    "remove, folding all": Scenario(_in_segments(50, 10), lambda folder: remove(folder, IDS[10:55], CONTEXT)),
}


# What runs in the driver.


def _copy(old: Path, new: Path) -> Path:
    if old.exists():
        shutil.copytree(old, new)
    return new


def kill_everywhere(
    scenario: Scenario, place: Path, every: int = 1, randomly: int = RANDOM_KILLS, seed: int = 0
) -> None:
    """Leaves `old`, `new`, and a folder a kill: `step-n` and `random-n-m`, with how each child ended in codes.json."""
    place.mkdir()
    codes: dict[str, int] = {}
    scenario.prepare(place / "old")
    _copy(place / "old", place / "new")
    started = time.monotonic()
    scenario.operate(place / "new")
    duration = time.monotonic() - started
    for number in itertools.count(1, every):
        folder = _copy(place / "old", place / f"step-{number:03}")

        def dying(folder: Path = folder, number: int = number) -> None:
            die_before_step(number)
            scenario.operate(folder)

        codes[folder.name] = in_a_child(dying)
        if codes[folder.name] != -signal.SIGKILL:
            break
    chance = random.Random(seed)
    for number in range(randomly):
        delay = chance.uniform(0, duration)
        for attempt in range(6):  # whoever was quicker than the kill is killed earlier the next time
            folder = _copy(place / "old", place / f"random-{number:03}-{attempt}")
            codes[folder.name] = in_a_child(lambda folder=folder: scenario.operate(folder), delay / 4**attempt)
            if codes[folder.name] == -signal.SIGKILL:
                break
    (place / "codes.part").write_text(json.dumps(codes))
    os.replace(place / "codes.part", place / "codes.json")


def drive_bm25(place: str) -> None:
    for number, (name, scenario) in enumerate(SCENARIOS.items()):
        kill_everywhere(scenario, Path(place) / name, seed=number)


DENSE = {"bm25": BM25Settings(), "dense": DenseSettings(), "hybrid": HybridSettings(of=("bm25", "dense"))}


def drive_dense(place: str) -> None:
    """Build, add and remove of an index with real embeddings. Looks at the result here: one loaded model is enough."""
    os.environ["TOOLREWRITE_ENCODER"] = "pytorch"  # threads of ONNX Runtime do not outlive a fork
    encoder.fingerprint = functools.cache(encoder.fingerprint)  # hashing 90 MB a hundred times proves nothing
    loaded = Context(find_model, Path(place) / "cache", device="cpu")
    build(Path(place) / "warm", TOOLS[:1], DENSE, loaded)  # loads the model, for all children

    def own(folder: Path) -> Context:
        """A cache of its own a folder: every child embeds for itself, and may die doing so."""
        return replace(loaded, cache=folder.parent / f"cache-{folder.name}")

    def build_some(folder: Path, count: int) -> Change:
        return build(folder, TOOLS[:count], DENSE, own(folder))

    scenarios = {
        "build": Scenario(lambda folder: None, lambda folder: build_some(folder, 5)),
        "add": Scenario(lambda folder: build_some(folder, 5), lambda folder: add(folder, TOOLS[5:7], own(folder))),
        "remove": Scenario(lambda folder: build_some(folder, 7), lambda folder: remove(folder, IDS[2:4], own(folder))),
    }
    counts = {}
    for name, scenario in scenarios.items():
        kill_everywhere(scenario, Path(place) / name, every=4, randomly=3)
        counts[name] = inspect(Path(place) / name, scenario, loaded)
    sys.stdout.write(json.dumps(counts))


# What is looked at afterwards.


@dataclass(frozen=True)
class Snapshot:
    """All that a user sees of an index."""

    fingerprint: str
    tools: dict[str, Tool]
    rankings: dict[str, list[Ranking]]


def look(folder: Path, context: Context) -> Snapshot | None:
    """What the index holds; None where there is none."""
    try:
        index = Index(folder, context)
    except IndexMissing:
        return None
    assert verify(folder) == []
    queries = QUERIES if index.names == ["bm25"] else QUERIES[:2]  # encoding takes its time
    rankings = {name: index.retriever(name).search(queries, 10) for name in index.names}
    return Snapshot(index.fingerprint, index.tools, rankings)


def inspect(place: Path, scenario: Scenario, context: Context) -> dict[str, int]:
    """Holds every folder that a kill left against the promise, and counts how they came out."""
    codes = json.loads((place / "codes.json").read_text())
    old, new = look(place / "old", context), look(place / "new", context)
    assert new is not None
    assert old != new
    counts = {"killed": 0, "old": 0, "new": 0}
    for name, code in codes.items():
        folder = place / name
        found = look(folder, context)
        assert found in (old, new), f"{folder} is neither the old index nor the new one"
        assert code in (0, -signal.SIGKILL)
        assert code != 0 or found == new
        counts["killed"] += code == -signal.SIGKILL
        counts["old" if found == old else "new"] += 1
        _again(folder, scenario, found == old)
        # The same manifest over files that are whole: the same index, byte for byte.
        assert manifests.read(folder)[1] == new.fingerprint
        assert verify(folder) == []
    return counts


def _again(folder: Path, scenario: Scenario, is_old: bool) -> None:
    """The same operation once more, as a user would after a crash."""
    if not is_old and "remove" in folder.parent.name:
        with pytest.raises(BadInput, match="has no tool"):  # what is removed cannot be removed again
            scenario.operate(folder)
        return
    scenario.operate(folder)
    if is_old:
        assert not list(folder.glob(".part-*")), "what a dead writer left is swept away"


def _running(function: str, *words: object) -> AbstractContextManager[subprocess.Popen[str]]:
    """A process that runs one function of this file."""
    code = f"import sys, test_index_survives as here; here.{function}(*sys.argv[1:])"
    paths = [str(Path(__file__).parent), os.environ["PYTHONPATH"]]
    return started(
        [sys.executable, "-c", code, *map(str, words)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _finished(process: subprocess.Popen[str]) -> str:
    out, err = process.communicate(timeout=4 * PATIENCE)
    assert process.returncode == 0, err
    return out


@dataclass(frozen=True)
class Driver:
    """A driver at work, and where."""

    place: Path
    process: subprocess.Popen[str]

    def wait_for(self, name: str) -> Path:
        """The place of a scenario, once all its kills are done."""
        codes = self.place / name / "codes.json"
        until(lambda: codes.exists() or self.process.poll() is not None, 0.05, patience=4 * PATIENCE)
        if not codes.exists():
            _finished(self.process)
        assert codes.exists()
        return self.place / name


@pytest.fixture(scope="module")
def drivers() -> Iterator[dict[str, Driver]]:
    """The drivers, working side by side."""
    with tempfile.TemporaryDirectory(prefix="survives-", dir=MEMORY) as place, ExitStack() as stack:
        names = ("drive_bm25", "drive_dense")
        for name in names:
            Path(place, name).mkdir()
        yield {
            name: Driver(Path(place, name), stack.enter_context(_running(name, Path(place, name)))) for name in names
        }


@pytest.mark.parametrize("name", SCENARIOS)
def test_killed_at_every_step_leaves_the_old_index_or_the_new_one(drivers: dict[str, Driver], name: str) -> None:
    context = learning_context() if "training" in name else CONTEXT
    counts = inspect(drivers["drive_bm25"].wait_for(name), SCENARIOS[name], context)
    assert counts["killed"] >= 10
    # A kill before the manifest is replaced leaves the old one, a kill after it the new one: both were met.
    assert counts["old"] >= 8
    assert counts["new"] >= 2


def test_two_writers_lose_nothing(tmp_path: Path) -> None:
    _build(tmp_path / "index", TOOLS[:40])
    work = [_running("add_one_by_one", tmp_path / "index", start, start + 8) for start in range(40, 72, 8)]
    work.append(_running("remove_one_by_one", tmp_path / "index", 0, 8))
    with ExitStack() as stack:
        for writer_process in [stack.enter_context(each) for each in work]:
            _finished(writer_process)
    assert Index(tmp_path / "index", CONTEXT).tools == {tool.id: tool for tool in TOOLS[8:72]}
    assert verify(tmp_path / "index") == []
    fresh = tmp_path / "fresh"
    _build(fresh, TOOLS[8:72])
    assert _rankings(tmp_path / "index") == _rankings(fresh)


def add_one_by_one(folder: str, start: str, end: str) -> None:
    for tool in TOOLS[int(start) : int(end)]:
        assert add(Path(folder), [tool], CONTEXT).added == 1


def remove_one_by_one(folder: str, start: str, end: str) -> None:
    for tool in IDS[int(start) : int(end)]:
        assert remove(Path(folder), [tool], CONTEXT).removed == 1


def _rankings(folder: Path) -> list[Ranking]:
    return Index(folder, CONTEXT).retriever("bm25").search(QUERIES, 20)


def test_a_writer_that_waited_in_vain_is_told_and_a_dead_holder_holds_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, catalogue = tmp_path / "index", tmp_path / "more.jsonl"
    _build(folder, TOOLS[:5])
    catalogue.write_text('{"_id": "new", "title": "newcomer", "text": "says hello"}\n{"_id": "n2", "title": "other"}\n')
    before = state(tmp_path)
    with _running("hold", folder) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        began = time.monotonic()
        for words in (["add", folder, catalogue], ["remove", folder, IDS[0]]):
            assert cli.index([*map(str, words), "--wait", "0.3"]) == 1
            said = capsys.readouterr()
            assert said.out == ""
            assert said.err == (
                f"rewrite-index: another process is writing to {folder}; waited 0.3 s, nothing was changed\n"
            )
        assert 0.6 <= time.monotonic() - began < PATIENCE  # the other holds it for longer
        assert holder.poll() is None
        assert state(tmp_path) == before
        assert Index(folder, CONTEXT).tools.keys() == set(IDS[:5])  # readers never wait
    assert cli.index(["add", str(folder), str(catalogue), "--wait", "0"]) == 0
    assert len(Index(folder, CONTEXT).tools) == 7


def hold(folder: str) -> None:
    with writer_lock(Path(folder), 0):
        sys.stdout.write("held\n")
        sys.stdout.flush()
        time.sleep(10 * PATIENCE)


def test_a_writer_waits_for_another_and_then_goes_on(tmp_path: Path) -> None:
    folder = tmp_path / "index"
    _build(folder, TOOLS[:5])
    with ExitStack() as stack:
        with writer_lock(folder, 0):
            waiting = stack.enter_context(_running("add_and_tell", folder))
            assert waiting.stdout is not None
            assert waiting.stdout.readline() == "waiting\n"
            assert len(Index(folder, CONTEXT).tools) == 5
            assert waiting.poll() is None
        _finished(waiting)
    assert len(Index(folder, CONTEXT).tools) == 6


def add_and_tell(folder: str) -> None:
    """Adds a tool, and tells when it has to wait for that."""
    sleep = time.sleep

    def told(seconds: float) -> None:
        sys.stdout.write("waiting\n")
        sys.stdout.flush()
        sleep(seconds)

    time.sleep = told  # in a process of its own
    add(Path(folder), TOOLS[5:6], CONTEXT)


# Readers among writers. All tools of a generation carry its number, so a mixture would show.


def _generation(number: int) -> list[Tool]:
    return [replace(tool, category=f"generation{number}") for tool in TOOLS[:12]]


def test_readers_see_one_generation_while_a_writer_never_rests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "MAX_SEGMENTS", 2)
    folder = tmp_path / "index"
    _build(folder, _generation(0))
    number = itertools.count(1)

    def write() -> None:
        at = next(number)
        if at % 5:
            add(folder, _generation(at), CONTEXT)
        else:
            _build(folder, _generation(at))
        remove(folder, [TOOLS[at % 12].id], CONTEXT)
        add(folder, [_generation(at)[at % 12]], CONTEXT)

    with _running("read_on", folder) as one, _running("read_on", folder) as two:
        until(lambda: (one.poll(), two.poll()).count(None) == 0 or write(), 0.0, patience=2 * PATIENCE)
        assert _finished(one) == _finished(two) == "read"


def read_on(folder: str) -> None:
    """Opens the index again and again, until it has seen enough generations of it."""
    opened, generations = 0, set()
    while opened < 30 or len(generations) < 6:
        index = Index(Path(folder), CONTEXT)
        there = {tool.category for tool in index.tools.values()}
        assert len(there) == 1, there
        assert len(index.tools) in (11, 12)
        for found in index.retriever("bm25").search([f"{there.copy().pop()} weather", *there], 20):
            assert set(found.ids) <= index.tools.keys()
        assert set(found.ids) == index.tools.keys()
        opened += 1
        generations |= there
    sys.stdout.write("read")


def test_an_opened_index_stays_as_it_was(tmp_path: Path) -> None:
    folder = tmp_path / "index"
    _build(folder, TOOLS[:20])
    index = Index(folder, CONTEXT)
    before = _rankings(folder)
    for number in range(5):
        _build(folder, TOOLS[number : number + 10])
    assert index.retriever("bm25").search(QUERIES, 20) == before
    assert index.tools.keys() == set(IDS[:20])
    newer = index.latest()
    assert newer.tools.keys() == set(IDS[4:14])
    assert newer.latest() is newer


def _overtaken(monkeypatch: pytest.MonkeyPatch, module: object, name: str, meanwhile: Callable[[], object]) -> None:
    """Lets writers do their work in the middle of the next call of a function."""
    plain = getattr(module, name)

    def overtaken(*args: object) -> object:
        monkeypatch.setattr(module, name, plain)
        result = plain(*args)
        meanwhile()
        return result

    monkeypatch.setattr(module, name, overtaken)


@pytest.mark.parametrize(
    "last",
    [
        pytest.param(3, id="by others"),
        pytest.param(0, id="by the same again"),
    ],
)
def test_a_reader_overtaken_while_opening_gets_a_whole_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, last: int
) -> None:
    folder = tmp_path / "index"
    _build(folder, _generation(0))
    # Two writers come between the manifest and the files it names: those are swept away.
    _overtaken(monkeypatch, manifests, "read", lambda: [_build(folder, _generation(number)) for number in (1, 2)])
    plain = reader.check

    def gone(*args: Any) -> Path:
        """A third comes when the reader has just found out. It may bring back the very index that was being read."""
        try:
            return plain(*args)
        except FileNotFoundError:
            _build(folder, _generation(last))
            raise

    monkeypatch.setattr(reader, "check", gone)
    assert Index(folder, CONTEXT).tools == {tool.id: tool for tool in _generation(last)}


def test_verify_overtaken_by_writers_does_not_cry_wolf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "index"
    _build(folder, _generation(0))
    _overtaken(monkeypatch, manifests, "read", lambda: [_build(folder, _generation(number)) for number in (1, 2, 3)])
    assert verify(folder) == []


def test_killed_with_embeddings_leaves_the_old_index_or_the_new_one(drivers: dict[str, Driver]) -> None:
    counts = json.loads(_finished(drivers["drive_dense"].process))
    assert counts.keys() == {"build", "add", "remove"}
    for count in counts.values():
        assert count["killed"] >= 4
        assert count["old"] >= 2
    assert sum(count["new"] for count in counts.values()) >= 3


@pytest.mark.parametrize("trouble", [KeyboardInterrupt(), OSError(5, "Input/output error")])
def test_trouble_after_the_seal_harms_neither_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trouble: BaseException
) -> None:
    folder = tmp_path / "index"
    _build(folder, TOOLS[:5])
    plain, calls = manifests.sync_folder, []

    def troubled(place: Path) -> None:
        calls.append(place)
        plain(place)
        if len(calls) == 2:  # the manifest has just been replaced
            raise trouble

    monkeypatch.setattr(manifests, "sync_folder", troubled)
    with pytest.raises(type(trouble)):
        add(folder, TOOLS[5:8], CONTEXT)
    assert verify(folder) == []
    assert len(Index(folder, CONTEXT).tools) == 8


def test_a_failed_build_leaves_an_index_of_another_version_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "index"
    _build(folder, TOOLS[:5])
    manifest = folder / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"format": 1', '"format": 2'))
    before = state(folder)

    def full(*_: object) -> str:
        assert len(state(folder)) > len(before)  # files of the new one are there already
        raise OutOfDisk("no room left")

    monkeypatch.setattr(writer, "_commit", full)
    with pytest.raises(OutOfDisk):
        _build(folder, TOOLS[:3])
    assert state(folder) == before
