"""Detection before search: labels, verdicts, the path of a query, the server, and the commands around it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from masstool_data import SETTINGS, small_set
from serving import running

from pipelines.cli import main as cli
from pipelines.data.labels import Label, load_labels
from pipelines.detection import Detection, detect, find_detector, score_detections
from pipelines.search import ToolSearch
from retrievers.errors import BadInput
from retrievers.index import Index, build
from retrievers.kind import Context
from retrievers.settings import BM25Settings, HybridSettings
from retrievers.types import Tool

CHAT, REQUEST = "thanks, you're sweet", "what's the weather in Oslo on Friday"


@pytest.fixture(scope="module")
def folder(some_tools: list[Tool], context: Context, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("detecting") / "index"
    kinds = {"masstool": SETTINGS, "bm25": BM25Settings(), "both": HybridSettings(of=("bm25", "masstool"))}
    build(folder, some_tools, kinds, context, training={"masstool": [small_set(some_tools)]})
    return folder


def write(folder: Path, **files: str) -> Path:
    (folder / "labels").mkdir(parents=True)
    texts = [json.dumps({"_id": f"q{number}", "text": f"words {number}"}) for number in range(60)]
    (folder / "queries.jsonl").write_text("\n".join(texts))
    for name, text in files.items():
        (folder / "labels" / f"{name}.tsv").write_text(text)
    return folder


def test_labels_are_read_and_dev_is_cut_from_train(tmp_path: Path) -> None:
    rows = "".join(f"q{number}\t{number % 2}\tsource{number % 3}\n" for number in range(50))
    found = load_labels(str(write(tmp_path / "a", train="query-id\tlabel\tsource\n" + rows, test="q55\t1\n")))
    train, dev = found.split("train"), found.split("dev")
    assert len(train) + len(dev) == 50
    assert 0 < len(dev) < 15
    assert not {each.id for each in train} & {each.id for each in dev}
    assert found.split("test") == [Label("q55", "words 55", True)]
    assert load_labels("bundled:sample").split("dev")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [("q1\tyes\n", "0 or 1"), ("q1\n", "0 or 1"), ("q99\t1\n", "'q99' is not in"), ("q1\t1\ta\tb\n", "0 or 1")],
)
def test_bad_labels_are_refused_with_their_line(tmp_path: Path, text: str, complaint: str) -> None:
    folder = write(tmp_path / "a", train=f"query-id\tlabel\n{text}")
    with pytest.raises(BadInput, match=complaint) as caught:
        load_labels(str(folder))
    assert "train.tsv:2:" in str(caught.value)


def test_sources_are_told_apart() -> None:
    labels = [
        Label("1", "a", True, "x"),
        Label("2", "b", True, "x"),
        Label("3", "c", False, "x"),
        Label("4", "d", False, "y"),
    ]
    verdicts = [Detection(each, 0.5, 0.5) for each in (True, False, False, True)]
    everything, x, y = score_detections(labels, verdicts)
    assert (everything.kept, everything.refused, everything.balanced) == (0.5, 0.5, 0.5)
    assert (x.source, x.kept, x.refused, x.balanced) == ("x", 0.5, 1.0, 0.75)
    assert (y.kept, y.refused, y.balanced) == (None, 0.0, None)


def test_what_needs_no_tool_gets_none_unless_asked_for(folder: Path, context: Context) -> None:
    index = Index(folder, context)
    for name in ("masstool", "both"):
        search = ToolSearch(index, name)
        detector = find_detector(index, name)
        assert detector is not None
        chat, request = search.explain([CHAT, REQUEST], 5)
        assert chat.detection is not None
        assert request.detection is not None
        assert chat.detection.probability < chat.detection.threshold == detector.threshold
        assert (len(chat.ranking), len(request.ranking)) == (0, 5)
        assert len(search.search([CHAT], 5, detect=False)[0]) == 5
        assert len(search.explain([CHAT], 5, threshold=0.0)[0].ranking) == 5
        assert len(search.explain([REQUEST], 5, threshold=1.0)[0].ranking) == 0
    named = next(tool for tool in index.tools if "_" in tool.partition("/")[2])
    [found] = ToolSearch(index, "masstool").explain([named], 3, threshold=1.0)
    assert found.ranking.ids[0] == named  # who names a tool wants it
    assert ToolSearch(index, "bm25").detect([CHAT]) == [None]


def test_the_server_says_whether_a_tool_is_needed(folder: Path, context: Context, tmp_path: Path) -> None:
    import shutil

    own = tmp_path / "index"
    shutil.copytree(folder, own)
    verdicts = detect(find_detector(Index(own, context), "masstool"), [CHAT, REQUEST])  # type: ignore[arg-type]
    config: dict[str, Any] = {
        "index": str(own),
        "retriever": "masstool",
        "feedback": str(tmp_path / "said"),
        "learn": True,
    }
    with running(config) as server:
        chat, request = server.search([CHAT, REQUEST], k=4)["results"]
        assert (chat["tools"], chat["detection"]["needs_tool"]) == ([], False)
        assert len(request["tools"]) == 4
        for found, verdict in zip((chat, request), verdicts, strict=True):
            assert found["detection"]["probability"] == pytest.approx(verdict.probability, abs=1e-4)
            assert found["detection"]["threshold"] == verdict.threshold
        [anyway] = server.search(CHAT, k=4, detect="off")["results"]
        assert (anyway["detection"], len(anyway["tools"])) == (None, 4)
        [lenient] = server.search(CHAT, k=4, detection_threshold=0.0)["results"]
        assert lenient["detection"]["needs_tool"]
        assert len(lenient["tools"]) == 4
        assert server.post("/v1/search", utterance="x", detection_threshold=2).status_code == 422
        # A confirmation is searched with at once.
        last = server.search(REQUEST, k=50, detect="off")["results"][0]["tools"][-1]["id"]
        assert server.post("/v1/feedback", utterance=REQUEST, tools=[last]).status_code == 200
        after = server.search(REQUEST, k=50, detect="off")["results"][0]["tools"]
        assert [tool["id"] for tool in after].index(last) < 3


def test_the_commands_confirm_and_tell(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], context: Context
) -> None:
    import shutil

    own = tmp_path / "index"
    shutil.copytree(folder, own)
    run: Callable[..., int] = lambda *words: cli.index([str(word) for word in words])  # noqa: E731
    labels = write(tmp_path / "labels", test="q1\t1\tours\nq2\t0\tours\nq3\t0\ttheirs\n")
    assert run("detect", own, labels, "--device", "cpu") == 0
    assert "balanced" in capsys.readouterr().out
    assert run("detect", own, labels, "--json", "--threshold", "0.9") == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["threshold"], [each["source"] for each in told["sources"]]) == (0.9, ["all", "ours", "theirs"])
    assert run("detect", own, labels, "--split", "dev") == 2
    assert "no labels in its dev split" in capsys.readouterr().err
    assert run("detect", own, labels, "--retriever", "bm25") == 2
    assert "has no detector" in capsys.readouterr().err
    tool = next(iter(Index(own, context).tools))
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text(json.dumps({"utterance": "the thing with aunt Berta", "tools": [tool]}) + "\n\n")
    assert run("confirm", own, pairs) == 0
    assert "1 confirmed" in capsys.readouterr().out
    for text in ("{}", '{"utterance": 3, "tools": []}', '{"utterance": "x", "tools": ["nobody"]}'):
        pairs.write_text(text)
        assert run("confirm", own, pairs) == 2
        assert capsys.readouterr().err.startswith("rewrite-index: ")
    assert run("search", own, "the thing with aunt Berta", "--retriever", "masstool", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["tools"]["masstool"][0]["tool_id"] == tool
    assert set(found["detection"]["masstool"]) == {"needs_tool", "probability", "threshold"}


def test_a_batch_job_gives_no_tools_to_what_needs_none(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text(f"{CHAT}\n{REQUEST}\n")
    for detecting in (True, False):
        config = tmp_path / f"{detecting}.yaml"
        config.write_text(f"index: {folder}\nretriever: masstool\nk: 3\ndetect: {str(detecting).lower()}\n")
        out = tmp_path / f"{detecting}.jsonl"
        assert cli.batch([str(tmp_path / "in.txt"), str(out), "--config", str(config), "--device", "cpu"]) == 0
        chat, request = [json.loads(line) for line in out.read_text().splitlines()]
        assert (len(chat["tools"]), len(request["tools"])) == ((0, 3) if detecting else (3, 3))
        assert ("detection" in chat) == detecting
