"""Bad input: one sentence that names file and line, exit code 2, nothing written, never a traceback."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from doubles import BM25_ONLY, counting_context, plain_context, state, tiny_model, varied_tools
from paths import SUPPORT

from pipelines.cli import main as cli
from pipelines.models import TOOLS as TOOLS_ADAPTER
from retrievers.index import Index, build, verify
from retrievers.settings import DenseSettings

TOOLS = varied_tools(30)
LINES = [json.dumps({"_id": tool.id, "title": tool.name, "text": tool.description}) for tool in TOOLS]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """In the place that is compared: a request that is refused leaves no trace there either."""
    monkeypatch.setenv("TOOLREWRITE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An index that must stay as it is."""
    build(tmp_path / "index", TOOLS[:5], BM25_ONLY, plain_context())
    return tmp_path / "index"


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "corpus.jsonl"
    path.write_text("\n".join(LINES[:8]) + "\n")
    return path


class Refused:
    """Runs a command that must be refused, and holds it to all that is promised."""

    def __init__(self, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._root, self._capsys = root, capsys

    def __call__(self, *words: object, naming: tuple[object, ...]) -> str:
        before = state(self._root)
        self._capsys.readouterr()
        code = cli.index([str(word) for word in words])
        out, err = self._capsys.readouterr()
        assert code == 2, err
        assert out == ""
        one_sentence(err, naming)
        assert state(self._root) == before
        return err


def one_sentence(err: str, naming: tuple[object, ...]) -> None:
    *progress, sentence = err.splitlines()
    assert sentence.startswith("rewrite-index: ")
    assert err.endswith("\n")
    assert not [line for line in progress if line.startswith(("rewrite-index: ", "Traceback"))]
    for name in naming:
        assert str(name) in sentence


@pytest.fixture
def refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Refused:
    return Refused(tmp_path, capsys)


def config(folder: Path, catalogue: object, more: dict[str, str] | None = None) -> Path:
    """A config for a build into `folder`."""
    lines = {"index": str(folder), "catalogue": str(catalogue), "retrievers": "{bm25: {kind: bm25}}"} | (more or {})
    path = folder.parent / "config.yaml"
    path.write_text("".join(f"{key}: {value}\n" for key, value in lines.items()))
    return path


# Catalogues.


def _broken(path: Path) -> tuple[str, ...]:
    path.write_text("\n".join([*LINES[10:13], LINES[13][:-9], LINES[14]]))
    return f"{path}, line 4", "broken JSON"


def _not_utf8(path: Path) -> tuple[str, ...]:
    path.write_bytes("\n".join(LINES[10:12]).encode() + b'\n{"_id": "caf\xe9", "title": "x"}\n')
    return f"{path}, line 3", "UTF-8"


def _doubled(path: Path) -> tuple[str, ...]:
    path.write_text("\n".join([*LINES[10:14], LINES[11]]))
    return f"{path}, line 5", f"{path}, line 2", repr(TOOLS[11].id)


def _empty(path: Path) -> tuple[str, ...]:
    path.write_bytes(b"")
    return str(path), "empty"


def _blank(path: Path) -> tuple[str, ...]:
    path.write_text("\n  \n\n")
    return str(path), "empty"


def _no_tools(path: Path) -> tuple[str, ...]:
    path.write_text('{"tools": []}')
    return str(path), "no tools"


def _missing(path: Path) -> tuple[str, ...]:
    return str(path), "does not exist"


def _no_id(path: Path) -> tuple[str, ...]:
    path.write_text(LINES[10] + '\n{"title": "nameless"}\n')
    return f"{path}, line 2", "_id"


def _not_an_object(path: Path) -> tuple[str, ...]:
    path.write_text(LINES[10] + "\n[1, 2]\n")
    return f"{path}, line 2", "object"


def _prose(path: Path) -> tuple[str, ...]:
    path.write_text("Dear all,\nplease find the tools attached.\n")
    return str(path), "format"


def _bad_table(path: Path) -> tuple[str, ...]:
    path.write_text('name,description\nok,fine\n"never closed,x\n')
    return f"{path}, line 3", "CSV"


@pytest.mark.parametrize(
    "spoil",
    [_not_utf8, _empty, _blank, _no_tools, _missing, _prose, _bad_table],
    ids=lambda spoil: spoil.__name__.strip("_"),
)
def test_bad_catalogues_are_refused_by_every_writer(
    folder: Path, tmp_path: Path, refused: Refused, spoil: Callable[[Path], tuple[str, ...]]
) -> None:
    path = tmp_path / "bad"
    naming = spoil(path)
    assert refused("add", folder, path, naming=naming)
    assert refused("build", config(tmp_path / "new", path), naming=naming)
    assert not (tmp_path / "new").exists()
    assert refused("build", config(folder, path), naming=naming)
    assert refused("lint", path, naming=naming)


@pytest.mark.parametrize(
    "spoil", [_broken, _doubled, _no_id, _not_an_object], ids=lambda spoil: spoil.__name__.strip("_")
)
def test_a_wrong_line_is_skipped_and_named_by_every_writer(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], spoil: Callable[[Path], tuple[str, ...]]
) -> None:
    path = tmp_path / "bad"
    naming = spoil(path)
    capsys.readouterr()
    for words in (["add", folder, path], ["build", config(tmp_path / "new", path)], ["lint", path]):
        assert cli.index([str(word) for word in words]) == 0
        [skipped] = [line for line in capsys.readouterr().err.splitlines() if line.startswith("skipped: ")]
        assert all(name in skipped for name in naming)
    assert TOOLS[10].id in Index(folder, plain_context()).tools


def test_the_same_id_in_two_catalogues_names_both(folder: Path, corpus: Path, tmp_path: Path, refused: Refused) -> None:
    other = tmp_path / "other.jsonl"
    other.write_text("\n".join([*LINES[20:22], LINES[3]]))
    naming = (corpus, other, repr(TOOLS[3].id))
    assert refused("add", folder, corpus, other, naming=naming)
    assert refused("build", config(tmp_path / "new", f"[{corpus}, {other}]"), naming=naming)


def test_a_good_catalogue_before_a_bad_one_is_not_half_taken(folder: Path, corpus: Path, refused: Refused) -> None:
    assert refused("add", folder, corpus, folder.parent / "nowhere.jsonl", naming=("nowhere.jsonl",))


def test_an_unknown_format_names_the_nearest(folder: Path, corpus: Path, refused: Refused) -> None:
    assert refused("add", folder, corpus, "--format", "bier", naming=("'bier'", "'beir'"))


# Configs.


@pytest.mark.parametrize(
    ("more", "line", "naming"),
    [
        ({"catalog": "x"}, 4, ("unknown key catalog", "catalogue")),
        ({"retrievers": "{bm25: {kind: bm25, k11: 2}}"}, 3, ("retrievers.bm25.k11", "k1")),
        ({"retrievers": "{bm25: {kind: bm52}}"}, 3, ("retrievers.bm25.kind", "'bm52'", "bm25")),
        ({"retrievers": "{bm25: {kind: [bm25]}}"}, 3, ("retrievers.bm25.kind",)),
        ({"retrievers": "{h: {kind: hybrid, of: [a, b], fusion: {method: rff}}}"}, 3, ("fusion.method", "rrf")),
        ({"retrievers": "{bm25: {kind: bm25, k1: fast}}"}, 3, ("retrievers.bm25.k1", "a number", "'fast'")),
        ({"retrievers": "{bm25: {kind: bm25, k1: -1}}"}, 3, ("retrievers.bm25.k1 must be", "got -1")),
        ({"retrievers": "{bm25: {kind: bm25, k1: .nan}}"}, 3, ("retrievers.bm25.k1", "a number")),
        ({"retrievers": "{a/b: {kind: bm25}}"}, None, ("a/b",)),
        ({"retrievers": "{}"}, None, ("at least one retriever",)),
        ({"retrievers": "{both: {kind: hybrid, of: [a, b]}}"}, None, ("both", "'a'")),
        ({"text": "[name, descriptoin]"}, 4, ("descriptoin", "description")),
        ({"text": "[]"}, 4, ("text",)),
        ({"format": "bier"}, 4, ("bier", "beir")),
        ({"catalogue": "[]"}, None, ("catalogue",)),
        ({"index": "2024-13-45"}, None, ()),
        ({"index": "!!int abc"}, None, ()),
        ({"index": '"a\\0b"'}, None, ()),
        ({"index": "[unclosed"}, None, ("YAML",)),
        ({"index": "&here [*here]"}, None, ()),
    ],
    ids=lambda value: " ".join(f"{k}={v}" for k, v in value.items()) if isinstance(value, dict) else "",
)
def test_a_config_that_cannot_be_meant_names_file_line_and_key(
    tmp_path: Path, corpus: Path, refused: Refused, more: dict[str, str], line: int | None, naming: tuple[str, ...]
) -> None:
    path = config(tmp_path / "new", corpus, more)
    assert refused("build", path, naming=(f"{path}:{line}:" if line else path, *naming))
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("data", "naming"),
    [
        (b"", ("index", "missing")),
        (b"- a\n- b\n", ("mapping",)),
        (b"index: caf\xe9\n", ("UTF-8",)),
        (b"index: a\n\tb: c\n", ("YAML",)),
        (b"index: a\nindex: b\n", (":2:", "duplicate key index")),
        (b"[" * 3000, ()),
    ],
    ids=["empty", "list", "latin-1", "tab", "twice", "brackets"],
)
def test_a_file_that_is_no_config_is_named(
    tmp_path: Path, refused: Refused, data: bytes, naming: tuple[str, ...]
) -> None:
    path = tmp_path / "config.yaml"
    path.write_bytes(data)
    assert refused("build", path, naming=(path, *naming))


def test_a_missing_config_is_named(tmp_path: Path, refused: Refused) -> None:
    assert refused("build", tmp_path / "nowhere.yaml", naming=(tmp_path / "nowhere.yaml",))
    assert refused("build", tmp_path, naming=(tmp_path,))


@pytest.mark.parametrize(
    ("override", "naming"),
    [
        ("retrievers.bm25.k2=1", ("retrievers.bm25.k2", "k1")),
        ("index", ("--set", "'index'")),
        ("index.deeper=1", ("index",)),
        ("text=[", ("--set", "text")),
        ("index=2024-13-45", ("--set", "index")),
    ],
)
def test_a_bad_override_is_refused(
    tmp_path: Path, corpus: Path, refused: Refused, override: str, naming: tuple[str, ...]
) -> None:
    assert refused("build", config(tmp_path / "new", corpus), "--set", override, naming=naming)


@pytest.mark.parametrize("model", ["bundled:minillm", "./no/such/folder", "empty"])
def test_a_model_that_is_not_there_is_named(tmp_path: Path, corpus: Path, refused: Refused, model: str) -> None:
    if model == "empty":
        model = str(tmp_path / "empty")
        Path(model).mkdir()
    path = config(tmp_path / "new", corpus, {"retrievers": f"{{dense: {{kind: dense, model: '{model}'}}}}"})
    assert refused("build", path, naming=(model,))
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("adapter.safetensors", "is damaged; install or train it again"),
        ("card.json", "has no readable card.json"),
        ("base_weights", "was trained on other weights than bundled:minilm"),
    ],
)
def test_an_adapter_that_cannot_be_used_is_named(
    tmp_path: Path, corpus: Path, refused: Refused, fault: str, words: str
) -> None:
    adapter = tmp_path / "adapter"
    shutil.copytree(TOOLS_ADAPTER, adapter)
    if fault == "base_weights":
        card = json.loads((adapter / "card.json").read_text())
        (adapter / "card.json").write_text(json.dumps(card | {fault: "of another model"}))
    else:
        (adapter / fault).write_bytes((adapter / fault).read_bytes()[:-9])
    path = config(tmp_path / "new", corpus, {"retrievers": f"{{dense: {{kind: dense, model: '{adapter}'}}}}"})
    assert refused("build", path, naming=(adapter, words))


# Places to write to.


def test_an_index_cannot_be_where_something_else_is(tmp_path: Path, corpus: Path, refused: Refused) -> None:
    assert refused("build", config(corpus, corpus), naming=(corpus, "file"))
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "me.jpg").write_bytes(b"me")
    assert refused("build", config(tmp_path / "photos", corpus), naming=(tmp_path / "photos", "me.jpg"))


# Indexes.


def _garbage(folder: Path) -> None:
    (folder / "manifest.json").write_bytes(b"\x00\xff garbage")


def _half(folder: Path) -> None:
    manifest = folder / "manifest.json"
    manifest.write_bytes(manifest.read_bytes()[:200])


def _nothing(folder: Path) -> None:
    (folder / "manifest.json").write_bytes(b"")


def _of_another_format(folder: Path) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps({**manifest, "format": 99}))


def _of_no_tools(folder: Path) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps({**manifest, "segments": []}))


def _of_somebody_else(folder: Path) -> None:
    (folder / "manifest.json").write_text('{"name": "A web page", "icons": []}')


def _nested(folder: Path) -> None:
    (folder / "manifest.json").write_text("[" * 100_000)


def _a_folder(folder: Path) -> None:
    (folder / "manifest.json").unlink()
    (folder / "manifest.json").mkdir()


def _unfinished(folder: Path) -> None:
    (folder / "manifest.json").unlink()


def _gone(folder: Path) -> None:
    shutil.rmtree(folder)


COMMANDS = {
    "info": ["info", "INDEX"],
    "verify": ["verify", "INDEX"],
    "search": ["search", "INDEX", "weather"],
    "add": ["add", "INDEX", "CORPUS"],
    "remove": ["remove", "INDEX", TOOLS[0].id],
}


@pytest.mark.parametrize(
    "spoil",
    [
        _garbage,
        _half,
        _nothing,
        _of_another_format,
        _of_no_tools,
        _of_somebody_else,
        _nested,
        _a_folder,
        _unfinished,
        _gone,
    ],
    ids=lambda spoil: spoil.__name__.strip("_"),
)
@pytest.mark.parametrize("command", COMMANDS)
def test_an_unreadable_index_is_named_with_the_way_out(
    folder: Path, corpus: Path, refused: Refused, spoil: Callable[[Path], None], command: str
) -> None:
    spoil(folder)
    folders = {"INDEX": folder, "CORPUS": corpus}
    err = refused(*(folders.get(word, word) for word in COMMANDS[command]), naming=(folder,))
    assert "build" in err or "cannot be read" in err


def test_an_index_that_lost_a_file_is_refused_by_whoever_needs_it(folder: Path, corpus: Path, refused: Refused) -> None:
    lost = next(folder.glob("bm25-rows-*"))
    lost.unlink()
    assert refused("search", folder, "weather", naming=(lost, "missing"))
    lost = next(folder.glob("tools-*"))
    lost.write_bytes(lost.read_bytes()[:-20])
    for words in (["search", folder, "weather"], ["add", folder, corpus], ["remove", folder, TOOLS[0].id]):
        assert refused(*words, naming=(lost, "bytes"))


@pytest.mark.parametrize(
    "label",
    [
        "tools",
        *(f"bm25-{name}" for name in "vocabulary starts rows counts lengths".split()),
    ],
)
def test_a_damaged_file_never_ends_in_a_traceback(folder: Path, capsys: pytest.CaptureFixture[str], label: str) -> None:
    """Only `verify` reads every byte, so a search may not notice; but when it does, it says so in a sentence."""
    path = next(folder.glob(f"{label}-*"))
    data = path.read_bytes()
    for directory in {*range(0, min(128, len(data)), 5), len(data) - 1, *range(128, len(data), 61)}:
        for bit in (1, 128):
            path.write_bytes(data[:directory] + bytes([data[directory] ^ bit]) + data[directory + 1 :])
            code = cli.index(["search", str(folder), "weather flight"])
            err = capsys.readouterr().err
            assert (code, err) == (0, "") or code == 2
            if code:
                one_sentence(err, (folder,))


def test_verify_names_what_is_damaged_and_fails(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = next(folder.glob("bm25-counts-*"))
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    before = state(folder)
    assert cli.index(["verify", str(folder)]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert str(path) in err
    assert all(line.startswith("rewrite-index: ") for line in err.splitlines())
    assert state(folder) == before


def test_vectors_of_another_model_are_refused_by_search_and_add(tmp_path: Path, corpus: Path, refused: Refused) -> None:
    model = tiny_model(tmp_path / "model")
    context, encoder = counting_context(model)
    build(tmp_path / "index", TOOLS[:5], {"dense": DenseSettings(model=str(model))}, context)
    (model / "model.safetensors").write_bytes(b"other weights")
    for words in (["search", tmp_path / "index", "weather"], ["add", tmp_path / "index", corpus]):
        assert refused(*words, naming=(tmp_path / "index", "'dense'", encoder.fingerprint, "build the index again"))


# Requests.


@pytest.mark.parametrize("k", ["0", "-3"])
def test_a_search_for_no_tools_is_refused(folder: Path, refused: Refused, k: str) -> None:
    assert refused("search", folder, "weather", "-k", k, naming=("-k", k))


def test_an_unknown_retriever_names_those_there_are(folder: Path, refused: Refused) -> None:
    assert refused("search", folder, "weather", "--retriever", "dense", naming=("'dense'", "bm25", folder))


def test_removing_an_unknown_id_names_it(folder: Path, refused: Refused) -> None:
    assert refused("remove", folder, TOOLS[0].id, "no-such-tool", naming=(folder, "'no-such-tool'"))
    assert refused("remove", folder, *(tool.id for tool in TOOLS[:5]), naming=(folder, "empty"))


# The real console, and a disk that is full.


def _console(*words: object, limit: int | None = None, wrap: str = "") -> subprocess.CompletedProcess[str]:
    """A console of its own, in which no file may grow beyond a limit. Python itself ignores SIGXFSZ."""

    def limited() -> None:
        if limit is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    code = f"import sys\nfrom pipelines.cli import main as cli\n{wrap}\nsys.exit(cli.index(sys.argv[1:]))"
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, words)],
        env={**os.environ, "PYTHONPATH": str(SUPPORT), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        preexec_fn=limited,
    )


def test_the_installed_command_refuses_as_told_here(folder: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.jsonl"
    naming = _not_utf8(bad)
    before = state(tmp_path)
    script = Path(sys.executable).parent / "rewrite-index"
    done = subprocess.run([script, "add", folder, bad], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    one_sentence(done.stderr, naming)
    assert state(tmp_path) == before


@pytest.mark.parametrize("limit", [0, 300, 3000])
def test_a_full_disk_changes_nothing(folder: Path, tmp_path: Path, limit: int) -> None:
    """A limit on the size of files looks like a full disk, and needs no disk of its own."""
    catalogue = tmp_path / "many.jsonl"
    catalogue.write_text("\n".join(LINES) + "\n")
    path = config(tmp_path / "new", catalogue)
    before = state(tmp_path)
    for words, directory in ((["add", folder, catalogue], folder), (["build", path], tmp_path / "new")):
        done = _console(*words, limit=limit)
        assert (done.returncode, done.stdout) == (2, ""), done.stderr
        one_sentence(done.stderr, (directory, "no room left"))
        assert state(tmp_path) == before
    assert verify(folder) == []
    assert len(Index(folder, plain_context()).tools) == 5


@pytest.mark.parametrize(
    "limit",
    [
        0,
        2000,
        100_000,
    ],
)
def test_a_full_disk_under_the_embedding_cache_is_told(tmp_path: Path, corpus: Path, limit: int) -> None:
    model = tiny_model(tmp_path / "model")
    path = config(tmp_path / "new", corpus, {"retrievers": f"{{dense: {{kind: dense, model: '{model}'}}}}"})
    corpus.write_text("".join(json.dumps({"_id": f"t{i}", "title": f"tool{i}"}) + "\n" for i in range(600)))
    # In place of a model: long vectors, out of nothing.
    loaded = (
        "import numpy, types, retrievers.dense.encoder as encoder\n"
        "encode = lambda texts, **how: numpy.ones((len(texts), 64), numpy.float32)\n"
        "encoder._load = lambda *where: types.SimpleNamespace(encode_document=encode)"
    )
    done = _console("build", path, limit=limit, wrap=loaded)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    one_sentence(done.stderr, (tmp_path,))
    assert not [name for name in state(tmp_path) if name.startswith("new/")]


IN_A_SMALL_DISK = """
import json, os, sys
from pathlib import Path
from doubles import state
from pipelines.cli import main as cli
from pipelines.models import TOOLS as TOOLS_ADAPTER
from retrievers.index import verify

disk, small, large, report = Path(sys.argv[1]), sys.argv[2], sys.argv[3], Path(sys.argv[4])
codes = [cli.index(["build", small])]
room = os.statvfs(disk)
(disk / "filler").write_bytes(b"x" * (room.f_bavail * room.f_frsize - 52 * 1024))
before = state(disk)
codes.append(cli.index(["add", str(disk / "index"), large]))
codes.append(cli.index(["build", small, "--set", "catalogue=" + large]))
after = state(disk)
(disk / "filler").unlink()
whole = verify(disk / "index") == []
codes.append(cli.index(["add", str(disk / "index"), large]))
changed = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
report.write_text(json.dumps({"codes": codes, "changed": changed, "whole": whole}))
"""


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("unshare"), reason="mounting is root's")
def test_a_really_full_disk_changes_nothing_and_nothing_stays_in_the_way(tmp_path: Path, corpus: Path) -> None:
    """On a disk in memory, filled so far that the first files of what is to be written still fit and the others not."""
    disk, large, report = tmp_path / "disk", tmp_path / "large.jsonl", tmp_path / "report.json"
    disk.mkdir()
    rows = ({"_id": f"t{number}", "title": f"tool{number}", "text": "x" * 300} for number in range(100))
    large.write_text("".join(json.dumps(row) + "\n" for row in rows))
    small = config(disk / "index", corpus).rename(tmp_path / "small.yaml")
    mount = 'mount -t tmpfs -o size=1m none "$0" || exit 77; exec "$@"'
    script = [sys.executable, "-c", IN_A_SMALL_DISK, disk, small, large, report]
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", mount, disk, *script],  # gone with the process
        env={**os.environ, "PYTHONPATH": str(SUPPORT)},
        capture_output=True,
        text=True,
    )
    if done.returncode == 77 or done.stderr.startswith("unshare"):
        pytest.skip(f"cannot mount here: {done.stderr}")
    assert done.returncode == 0, done.stderr
    assert json.loads(report.read_text()) == {"codes": [0, 2, 2, 0], "changed": [], "whole": True}
    sentences = [line for line in done.stderr.splitlines() if line.startswith("rewrite-index: ")]
    assert [f"no room left to write in {disk}" in line for line in sentences] == [True, True]


# What a newcomer mistypes, or does not have yet.


def test_a_config_that_is_not_there_is_answered_with_the_one_that_was_meant(
    refused: Refused, tmp_path: Path, corpus: Path
) -> None:
    config(tmp_path / "index", corpus)
    refused("build", tmp_path / "confg.yaml", naming=("did you mean", tmp_path / "config.yaml"))
    refused("build", tmp_path / "else" / "x.yaml", naming=("configs/",))
    assert not (tmp_path / "index").exists()  # nothing is built by a guess


def test_public_data_that_is_not_there_is_told_where_to_get(refused: Refused, tmp_path: Path) -> None:
    refused("build", config(tmp_path / "index", "data/no-such-set"), naming=("data/no-such-set", "docs/data.md"))
    assert not (tmp_path / "index").exists()


def test_two_servers_with_a_tool_of_one_name_are_told_how_to_get_along(refused: Refused, tmp_path: Path) -> None:
    for name in ("one.json", "two.json"):
        (tmp_path / name).write_text(json.dumps({"tools": [{"name": "read_file", "inputSchema": {}}]}))
    both = f"[{tmp_path / 'one.json'}, {tmp_path / 'two.json'}]"
    refused("build", config(tmp_path / "index", both), naming=("read_file", "rewrite-index mcp --name"))
    assert not (tmp_path / "index").exists()  # neither of the two was taken


def test_confirmed_queries_that_are_not_there(refused: Refused, folder: Path, tmp_path: Path) -> None:
    before = (folder / "manifest.json").read_bytes()
    refused("confirm", folder, tmp_path / "right.jsonl", naming=(tmp_path / "right.jsonl", "does not exist"))
    assert (folder / "manifest.json").read_bytes() == before
