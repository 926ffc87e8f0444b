"""What build, add and remove promise, and what verify finds."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

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
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.models import find_model
from retrievers.dense.encoder import fingerprint
from retrievers.dense.retriever import DenseKind
from retrievers.errors import BadInput, IndexBroken, IndexMissing, ModelMismatch
from retrievers.index import Change, Index, add, build, remove, segments, verify
from retrievers.index import manifest as manifests
from retrievers.kind import Context
from retrievers.settings import BM25Settings, DenseSettings, HybridSettings
from retrievers.types import Ranking, Tool

TOOLS = varied_tools(40)
IDS = [tool.id for tool in TOOLS]
CONTEXT = plain_context()
THREE = {"bm25": BM25Settings(), "dense": DenseSettings(), "hybrid": HybridSettings(of=("bm25", "dense"))}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An index of twenty tools."""
    build(tmp_path / "index", TOOLS[:20], BM25_ONLY, CONTEXT)
    return tmp_path / "index"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return tiny_model(tmp_path / "model")


def counts(change: Change) -> tuple[int, int, int, int]:
    return change.added, change.updated, change.unchanged, change.removed


def rankings(folder: Path, context: Context = CONTEXT, k: int = 50) -> dict[str, list[Ranking]]:
    index = Index(folder, context)
    return {name: index.retriever(name).search(QUERIES, k) for name in index.names}


# What changes, and what is told of it.


def test_build_holds_what_it_was_given_and_nothing_but_what_its_manifest_names(folder: Path) -> None:
    index = Index(folder, CONTEXT)
    assert index.tools == {tool.id: tool for tool in TOOLS[:20]}
    assert list(index.tools) == IDS[:20]
    assert {path.name for path in folder.iterdir()} == index.manifest.files() | {"manifest.json", ".lock"}
    assert verify(folder) == []


def test_add_tells_new_from_updated_from_unchanged(folder: Path) -> None:
    change = add(folder, [*TOOLS[18:25], changed(TOOLS[3])], CONTEXT)
    assert counts(change) == (5, 1, 2, 0)
    index = Index(folder, CONTEXT)
    assert index.fingerprint == change.fingerprint
    assert index.tools == {**{tool.id: tool for tool in TOOLS[:25]}, IDS[3]: changed(TOOLS[3])}


def test_what_was_added_is_found_and_what_was_replaced_or_removed_is_not(folder: Path) -> None:
    def found(query: str) -> tuple[str, ...]:
        return Index(folder, CONTEXT).retriever("bm25").search([query], 50)[0].ids

    assert found("xylophone") == ()
    add(folder, [replace(TOOLS[3], description="tunes a xylophone"), Tool("zither", "tuneZither")], CONTEXT)
    assert found("xylophone") == (IDS[3],)
    assert found("zither") == ("zither",)
    add(folder, [replace(TOOLS[3], description="tunes a guitar")], CONTEXT)
    assert found("xylophone") == ()
    assert found("tune") == ("zither", IDS[3])
    remove(folder, ["zither"], CONTEXT)
    assert found("zither") == ()
    assert found("tune") == (IDS[3],)


def test_a_removed_tool_may_come_back(folder: Path) -> None:
    before = rankings(folder)
    assert counts(remove(folder, IDS[4:6], CONTEXT)) == (0, 0, 0, 2)
    assert rankings(folder) != before
    assert counts(add(folder, TOOLS[4:6], CONTEXT)) == (2, 0, 0, 0)
    assert rankings(folder) == before


def test_removing_an_unknown_id_removes_nothing_at_all(folder: Path) -> None:
    before = state(folder)
    with pytest.raises(BadInput, match=r"has no tool 'nobody' \(and 1 more\)"):
        remove(folder, [IDS[0], "nobody", "somebody"], CONTEXT)
    assert state(folder) == before


def test_an_unknown_id_is_answered_with_the_one_that_was_meant(folder: Path) -> None:
    with pytest.raises(BadInput, match=f"did you mean {IDS[0]!r}"):
        remove(folder, [IDS[0].rpartition("/")[2] if "/" in IDS[0] else IDS[0] + "s"], CONTEXT)
    with pytest.raises(BadInput, match="`rewrite-index search` shows them"):
        remove(folder, ["?"], CONTEXT)


def test_removing_everything_is_refused(folder: Path) -> None:
    before = state(folder)
    with pytest.raises(BadInput, match=r"would leave .* empty"):
        remove(folder, IDS[:20], CONTEXT)
    assert state(folder) == before


def test_empty_and_doubled_catalogues_are_refused_and_create_nothing(folder: Path, tmp_path: Path) -> None:
    before = state(tmp_path)
    for tools, told in (([], "empty"), ([TOOLS[30], TOOLS[31], TOOLS[30]], f"'{IDS[30]}' is in the catalogue twice")):
        with pytest.raises(BadInput, match=told):
            add(folder, tools, CONTEXT)
        with pytest.raises(BadInput, match=told):
            build(tmp_path / "other", tools, BM25_ONLY, CONTEXT)
    assert state(tmp_path) == before
    assert not (tmp_path / "other").exists()


def test_every_fact_of_a_tool_survives_the_disk(tmp_path: Path) -> None:
    odd = [
        Tool("a b", "two words", "line\u2028separator, tab\tand \x00 nul, \x1f control", schema='{"type": "object"}'),
        Tool("🦊/狐", "狐狸", "naïve café — ﬁ ligature"),
        Tool("the", "the"),  # not a single word to search for
        Tool("[", "!!!"),
        replace(TOOLS[0], id="break", description="two\r\nlines\x85and more"),
    ]
    build(tmp_path / "index", odd, BM25_ONLY, CONTEXT)
    assert list(Index(tmp_path / "index", CONTEXT).tools.values()) == odd
    assert counts(add(tmp_path / "index", odd, CONTEXT)) == (0, 0, 5, 0)


def test_text_that_utf8_cannot_hold_is_still_one_tool(tmp_path: Path) -> None:
    """Lone surrogates come out of sloppy JSON. They may be replaced, but not doubled."""
    tool = Tool("half", "emoji", "cut in \udc00 two")
    build(tmp_path / "index", [TOOLS[0], tool], BM25_ONLY, CONTEXT)
    assert add(tmp_path / "index", [tool], CONTEXT).added == 0
    index = Index(tmp_path / "index", CONTEXT)
    assert len(index.tools) == 2
    assert len(index.retriever("bm25").search(["emoji"], 5)[0].ids) == 1


# However an index came about, it answers like one that was built at once.

STEP = st.tuples(
    st.sampled_from(["add", "update", "remove", "build"]),
    st.lists(st.integers(0, len(TOOLS) - 1), min_size=1, max_size=8, unique=True),
)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.lists(STEP, min_size=3, max_size=12), st.sampled_from([1, 2, 12]))
def test_any_history_answers_like_a_fresh_build(steps: list[tuple[str, list[int]]], most: int) -> None:
    with tempfile.TemporaryDirectory(dir=MEMORY) as place, pytest.MonkeyPatch.context() as patch:
        patch.setattr(segments, "MAX_SEGMENTS", most)
        root = Path(place)
        context, encoder = counting_context(tiny_model(root / "model"), root / "cache")
        build(root / "index", TOOLS[:10], THREE, context)
        expected = {tool.id: tool for tool in TOOLS[:10]}
        for number, (verb, places) in enumerate(steps):
            _take_step(root / "index", context, expected, verb, places, number)
        assert Index(root / "index", context).tools == expected
        assert verify(root / "index") == []
        embedded = len(encoder.embedded)
        build(root / "fresh", list(expected.values()), THREE, context)
        assert len(encoder.embedded) == embedded  # all known
        assert rankings(root / "index", context) == rankings(root / "fresh", context)


def _take_step(
    folder: Path, context: Context, expected: dict[str, Tool], verb: str, places: list[int], number: int
) -> None:
    """One change of an index and of the dict that says what it should hold; what is told and what is done agree."""
    before = manifests.read(folder)[1]
    if verb == "remove":
        gone = [IDS[place] for place in places if IDS[place] in expected][: len(expected) - 1]
        change = remove(folder, gone, context)
        told = (0, 0, 0, len(gone))
        for tool in gone:
            del expected[tool]
    elif verb == "build":
        change = build(folder, [TOOLS[place] for place in places], THREE, context)
        told = (len(places), 0, 0, 0)
        was, now = dict(expected), {IDS[place]: TOOLS[place] for place in places}
        expected.clear()
        expected.update(now)
        assert (change.fingerprint != before) or was == now
    else:
        tools = [changed(TOOLS[place], f"turn {number}") if verb == "update" else TOOLS[place] for place in places]
        new = [tool for tool in tools if tool.id not in expected]
        same = [tool for tool in tools if expected.get(tool.id) == tool]
        change = add(folder, tools, context)
        told = (len(new), len(tools) - len(new) - len(same), len(same), 0)
        expected.update({tool.id: tool for tool in tools})
    assert counts(change) == told
    assert change.fingerprint == manifests.read(folder)[1]
    if verb != "build":
        assert (change.fingerprint != before) == any((change.added, change.updated, change.removed))
    manifest, _ = manifests.read(folder)
    assert manifest.live() == len(expected)
    # A base, what was folded, and at the most as many as are put up with.
    assert len(manifest.segments) <= max(2, segments.MAX_SEGMENTS)


def test_folding_bounds_segments_and_dead_rows(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "MAX_SEGMENTS", 4)
    for number in range(30):
        add(folder, [changed(TOOLS[number % 20], f"turn {number}")], CONTEXT)
        manifest, _ = manifests.read(folder)
        assert len(manifest.segments) <= 4
        assert sum(len(segment.dead) for segment in manifest.segments) <= 17
        # Files of this version and of the one before, no more: nothing piles up.
        assert len(list(folder.iterdir())) <= 2 * 6 * 5 + 2
    assert Index(folder, CONTEXT).tools.keys() == set(IDS[:20])


def test_adding_one_tool_leaves_the_files_of_the_others_alone(folder: Path) -> None:
    before = {path.name: path.stat().st_mtime_ns for path in folder.iterdir() if path.suffix in (".npy", ".jsonl")}
    add(folder, [TOOLS[30]], CONTEXT)
    remove(folder, [IDS[1]], CONTEXT)
    after = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert before.items() <= after.items()


# Fingerprints.


def test_the_same_input_gives_the_same_fingerprint_and_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    again = build(tmp_path / "again", TOOLS[:20], BM25_ONLY, CONTEXT)
    assert again.fingerprint == Index(folder, CONTEXT).fingerprint
    for place in (folder, tmp_path / "again"):
        add(place, TOOLS[20:25], CONTEXT)
        remove(place, IDS[:2], CONTEXT)
    assert state(folder) == state(tmp_path / "again")
    assert Index(folder, CONTEXT).fingerprint != again.fingerprint


@pytest.mark.parametrize(
    "other",
    [
        lambda folder: build(folder, [*TOOLS[:19], changed(TOOLS[19])], BM25_ONLY, CONTEXT),
        lambda folder: build(folder, TOOLS[:20], {"bm25": BM25Settings(k1=1.6)}, CONTEXT),
        lambda folder: build(folder, TOOLS[:20], {"words": BM25Settings()}, CONTEXT),
        lambda folder: build(folder, TOOLS[:20], BM25_ONLY, CONTEXT, text=("name",)),
        lambda folder: build(folder, [replace(TOOLS[0], schema="{}"), *TOOLS[1:20]], BM25_ONLY, CONTEXT),
    ],
    ids=["content", "settings", "name", "text", "schema"],
)
def test_anything_that_changes_an_answer_changes_the_fingerprint(folder: Path, other: Callable[[Path], Change]) -> None:
    before = Index(folder, CONTEXT).fingerprint
    assert other(folder).fingerprint != before
    assert build(folder, TOOLS[:20], BM25_ONLY, CONTEXT).fingerprint == before


def test_doing_nothing_changes_no_byte(folder: Path) -> None:
    before = state(folder)
    change = add(folder, TOOLS[:20], CONTEXT)
    assert counts(change) == (0, 0, 20, 0)
    assert change.fingerprint == Index(folder, CONTEXT).fingerprint
    assert state(folder) == before


# verify.

POSTINGS = ("vocabulary", "starts", "rows", "counts", "lengths", "name-vocabulary", "name-starts", "name-rows")
FILES = ["tools", *(f"bm25-{name}" for name in POSTINGS), "dense-vectors"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an index of all kinds, in two segments, with removed tools."""
    place = tmp_path_factory.mktemp("whole")
    context, _ = counting_context(tiny_model(place / "model"))
    build(place / "index", TOOLS[:8], THREE, context)
    add(place / "index", TOOLS[8:10], context)
    # What the version before left is not part of the index.
    remove(place / "index", IDS[:1], context)
    return place


@pytest.fixture
def copy(whole: Path, tmp_path: Path) -> Path:
    return shutil.copytree(whole / "index", tmp_path / "index")


def files(folder: Path, label: str) -> list[Path]:
    """The files of a label, one a segment."""
    found = sorted(path for path in folder.iterdir() if path.name.rpartition("-")[0] == label)
    assert len(found) == 2
    return found


def test_the_labels_below_cover_every_file(whole: Path) -> None:
    named = {path.name for label in FILES for path in files(whole / "index", label)}
    assert {path.name for path in (whole / "index").iterdir()} == named | {"manifest.json", ".lock"}
    assert verify(whole / "index") == []


@pytest.mark.parametrize("label", FILES)
def test_verify_finds_a_flipped_bit_anywhere(copy: Path, label: str) -> None:
    for path in files(copy, label):
        data = path.read_bytes()
        for place in {0, len(data) - 1, *range(0, len(data), max(1, len(data) // 20))}:
            path.write_bytes(data[:place] + bytes([data[place] ^ 1 << place % 8]) + data[place + 1 :])
            complaints = verify(copy)
            assert len(complaints) == 1
            assert str(path) in complaints[0]
        path.write_bytes(data)
    assert verify(copy) == []


def test_verify_finds_a_flipped_bit_anywhere_in_the_manifest(tmp_path: Path) -> None:
    """It says what the others must be, so something must say what it must be."""
    build(tmp_path, TOOLS[:3], BM25_ONLY, CONTEXT)
    remove(tmp_path, IDS[:1], CONTEXT)
    path = tmp_path / "manifest.json"
    data = path.read_bytes()
    unnoticed = []
    for place in range(len(data)):
        path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        try:
            complaints = verify(tmp_path)
        except IndexBroken as error:
            complaints = [str(error)]
        if not complaints:
            unnoticed.append(data[data.rfind(b"\n", 0, place) + 1 : place + 1].decode().strip())
    assert unnoticed == []


@pytest.mark.parametrize("label", FILES)
def test_a_cut_or_missing_file_is_found_and_not_opened(copy: Path, whole: Path, label: str) -> None:
    context, _ = counting_context(whole / "model")
    for path in files(copy, label):
        data = path.read_bytes()
        path.write_bytes(data[:-1])
        assert [str(path) in complaint for complaint in verify(copy)] == [True]
        with pytest.raises(IndexBroken, match=path.name):
            Index(copy, context)
        path.unlink()
        assert verify(copy) == [f"{path} is missing"]
        with pytest.raises(IndexBroken, match=f"{path.name} is missing"):
            Index(copy, context)
        path.write_bytes(data)
    assert verify(copy) == []


def test_all_damage_is_told_at_once(copy: Path) -> None:
    first, second = files(copy, "bm25-rows")
    first.write_bytes(b"x")
    second.unlink()
    assert {str(path) for path in (first, second)} == {complaint.split()[0] for complaint in verify(copy)}


# Folders that are no index.


def test_a_folder_without_a_manifest_is_not_an_index_until_it_is_built(copy: Path) -> None:
    (copy / "manifest.json").unlink()
    for attempt in (
        lambda: Index(copy, CONTEXT),
        lambda: verify(copy),
        lambda: add(copy, TOOLS[:1], CONTEXT),
        lambda: remove(copy, IDS[:1], CONTEXT),
        lambda: Index(copy / "nowhere", CONTEXT),
    ):
        with pytest.raises(IndexMissing, match="rewrite-index build"):
            attempt()
    assert not (copy / "nowhere").exists()
    build(copy, TOOLS[:3], BM25_ONLY, CONTEXT)
    assert verify(copy) == []
    # What the unfinished one left is gone.
    assert {path.name for path in copy.iterdir()} == Index(copy, CONTEXT).manifest.files() | {"manifest.json", ".lock"}


@pytest.mark.parametrize(
    "names",
    [
        ["notes.txt"],
        ["sub/notes.txt"],
        pytest.param(["report-2024010112000000.csv"]),  # sixteen digits, like a hash
        pytest.param(["deadbeefdeadbeef"]),
        pytest.param(["tools-0123456789abcdef.txt"]),
        pytest.param(["manifest.json", "index.html"]),  # of a web page
    ],
    ids=" ".join,
)
def test_a_folder_with_somebody_elses_files_is_refused_and_left_alone(tmp_path: Path, names: list[str]) -> None:
    for name in names:
        (tmp_path / "theirs" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "theirs" / name).write_text('{"name": "mine"}')
    before = state(tmp_path)
    with pytest.raises((BadInput, IndexBroken)):
        build(tmp_path / "theirs", TOOLS[:3], BM25_ONLY, CONTEXT)
    assert state(tmp_path) == before
    assert not (tmp_path / "theirs" / ".lock").exists()


@pytest.mark.parametrize(
    "name",
    [
        "notes.txt",
        pytest.param("report-2024010112000000.csv"),
        pytest.param("deadbeefdeadbeef"),
    ],
)
def test_writers_sweep_nothing_that_somebody_put_into_an_index(folder: Path, name: str) -> None:
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text("mine")
    add(folder, [TOOLS[30]], CONTEXT)
    remove(folder, [IDS[0]], CONTEXT)
    build(folder, TOOLS[:3], BM25_ONLY, CONTEXT)
    assert (folder / name).read_text() == "mine"


def test_a_build_leaves_its_neighbours_alone(tmp_path: Path) -> None:
    for name in ("index-training", "index-", "index.old", ".lock-of-somebody"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "notes.txt").write_text("mine")
    before = state(tmp_path)
    build(tmp_path / "index", TOOLS[:3], BM25_ONLY, CONTEXT)
    add(tmp_path / "index", TOOLS[3:5], CONTEXT)
    assert before.items() <= state(tmp_path).items()


def test_a_damaged_index_can_be_built_anew(folder: Path) -> None:
    (folder / "manifest.json").write_bytes(b"{ half")
    with pytest.raises(IndexBroken):
        Index(folder, CONTEXT)
    build(folder, TOOLS[:5], BM25_ONLY, CONTEXT)
    assert verify(folder) == []
    assert len(Index(folder, CONTEXT).tools) == 5


# Embeddings: nothing twice, and never those of another model.


def test_nothing_is_embedded_twice(tmp_path: Path, model: Path) -> None:
    context, encoder = counting_context(model, tmp_path / "cache")
    build(tmp_path / "index", TOOLS[:10], THREE, context)
    assert len(encoder.embedded) == len(set(encoder.embedded))
    known = len(encoder.embedded)
    add(tmp_path / "index", [*TOOLS[:10], TOOLS[20]], context)
    add(tmp_path / "index", [changed(TOOLS[2]), *TOOLS[3:6]], context)
    assert len(encoder.embedded) == known + 2
    add(tmp_path / "index", [TOOLS[2]], context)  # back to what it was
    add(tmp_path / "index", [replace(TOOLS[4], schema="{}")], context)  # not part of the text
    remove(tmp_path / "index", IDS[:5], context)
    build(tmp_path / "index", TOOLS[3:10], THREE, context)
    build(tmp_path / "other", [*TOOLS[:10], TOOLS[20]], {"mine": DenseSettings(batch_size=3)}, context)
    assert len(encoder.embedded) == known + 2


def test_tools_that_read_the_same_are_embedded_once(tmp_path: Path, model: Path) -> None:
    for cache in (tmp_path / "cache", None):
        context, encoder = counting_context(model, cache)
        build(tmp_path / "index", [replace(TOOLS[0], id=f"twin-{number}") for number in range(5)], THREE, context)
        assert len(encoder.embedded) == 1


def test_folding_and_removing_embed_nothing_even_without_a_cache(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "MAX_SEGMENTS", 1)
    context, encoder = counting_context(model, None)
    build(tmp_path / "index", TOOLS[:6], THREE, context)
    for tool in TOOLS[6:12]:
        add(tmp_path / "index", [tool], context)
    remove(tmp_path / "index", IDS[:3], context)
    assert len(encoder.embedded) == 12


def test_a_second_build_of_known_texts_loads_no_model(tmp_path: Path) -> None:
    """Through the console, with the real model's weights: its vectors come from the cache, torch stays unloaded."""
    minilm = find_model("bundled:minilm")
    context, encoder = counting_context(minilm, tmp_path / "cache")
    catalogue = tmp_path / "corpus.jsonl"
    catalogue.write_text("".join(json.dumps({"_id": f"t{i}", "title": f"tool{i}"}) + "\n" for i in range(3)))
    tools = [Tool(f"t{i}", f"tool{i}") for i in range(3)]
    build(tmp_path / "index", tools, {"dense": DenseSettings(model="bundled:minilm")}, context)
    assert len(encoder.embedded) == 3
    config = tmp_path / "index.yaml"
    dense = "{dense: {kind: dense, model: 'bundled:minilm'}}"
    config.write_text(f"index: {tmp_path / 'again'}\ncatalogue: {catalogue}\nretrievers: {dense}\n")
    code = "import sys; from pipelines.cli import main as cli; print(cli.index(sys.argv[1:]), 'torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code, "build", str(config)],
        env={**os.environ, "TOOLREWRITE_CACHE": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
    )
    assert done.stdout.endswith("\n0 False\n"), done.stderr
    assert Index(tmp_path / "again", context).fingerprint == Index(tmp_path / "index", context).fingerprint


def test_vectors_of_another_model_are_refused(tmp_path: Path) -> None:
    original = find_model("bundled:minilm")
    other = shutil.copytree(original, tmp_path / "other")
    with (other / "model.safetensors").open("r+b") as weights:
        weights.seek(50_000_000)
        byte = weights.read(1)[0]
        weights.seek(50_000_000)
        weights.write(bytes([byte ^ 1]))
    context, _ = counting_context(original)
    build(tmp_path / "index", TOOLS[:5], THREE, context)
    before = state(tmp_path / "index")
    stranger, encoder = counting_context(other)
    index = Index(tmp_path / "index", stranger)
    for name in ("dense", "hybrid"):
        with pytest.raises(ModelMismatch, match=f"{fingerprint(original)}.*{fingerprint(other)}"):
            index.retriever(name)
    with pytest.raises(ModelMismatch):
        add(tmp_path / "index", TOOLS[5:7], stranger)
    assert encoder.embedded == []
    assert state(tmp_path / "index") == before
    assert index.retriever("bm25").search(["weather"], 3)[0].ids  # what needs no model goes on


def test_a_model_trained_for_an_index_is_kept_and_checked_with_it(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DenseKind, "train", learn_at_once)
    trained = tiny_model(tmp_path / "trained", b"tuned weights")
    context, untrained = counting_context(model, None, trained)
    build(tmp_path / "index", TOOLS[:5], LEARNING, context, training=LESSONS)
    add(tmp_path / "index", TOOLS[5:7], context)
    assert untrained.embedded == []
    assert Index(tmp_path / "index", context).retriever("dense").search(["weather"], 3)[0].ids
    for path in (path for path in next((tmp_path / "index").glob("dense-model-*")).iterdir()):
        data = path.read_bytes()
        path.write_bytes(bytes([data[0] ^ 1]) + data[1:])
        assert [str(path) in complaint for complaint in verify(tmp_path / "index")] == [True]
        with pytest.raises(ModelMismatch):
            Index(tmp_path / "index", context).retriever("dense")
        path.write_bytes(data)
    assert verify(tmp_path / "index") == []


def test_notes_beside_a_model_do_not_make_it_another(tmp_path: Path, model: Path) -> None:
    context, _ = counting_context(model)
    build(tmp_path / "index", TOOLS[:5], THREE, context)
    (model / "README.md").write_text("about this model")
    context, _ = counting_context(model)
    assert Index(tmp_path / "index", context).retriever("dense").search(["weather"], 3)[0].ids
