"""AnswerCache are found again by what they depend on, and by nothing else."""

from __future__ import annotations

import sqlite3
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
from killing import started

from pipelines.batch.answer_cache import AnswerCache, CachedAnswer, make_key_function
from retrievers.errors import BadInput


def test_answers_come_back_and_the_first_one_stays(tmp_path: Path) -> None:
    known = {
        f"{number:032x}": CachedAnswer(f"- {number} 天", number, number % 2 == 0, number % 3) for number in range(1200)
    }
    first = AnswerCache(tmp_path / "deep" / "answers.sqlite")
    first.put(known)
    first.put(
        {f"{5:032x}": CachedAnswer("other"), "long": CachedAnswer(None), "no": CachedAnswer(None, refused="because")}
    )
    first.close()
    again = AnswerCache(tmp_path / "deep" / "answers.sqlite")
    assert again.get([*known, "long", "no", "unknown"]) == {**known, "long": CachedAnswer(None)}


def test_a_key_hangs_on_utterance_and_scope() -> None:
    key = make_key_function({"model": "a", "seed": 0})
    assert key("rain") == make_key_function({"seed": 0, "model": "a"})("rain")
    assert len({key("rain"), key("snow"), make_key_function({"model": "b", "seed": 0})("rain"), key("")}) == 4


def test_a_file_that_is_none_is_told(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"a novel, not a database " * 100)
    with pytest.raises(BadInput, match="is not a cache of answers"):
        AnswerCache(tmp_path / "x")
    with sqlite3.connect(tmp_path / "y") as other:
        other.execute("CREATE TABLE answers (key TEXT PRIMARY KEY, value TEXT)")
        other.execute("INSERT INTO answers VALUES ('a', 'no list')")
    with pytest.raises(BadInput, match="is not a cache of answers"):
        AnswerCache(tmp_path / "y").get(["a"])


def test_several_processes_may_fill_one_file(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from pipelines.batch.answer_cache import AnswerCache, CachedAnswer\n"
        "answers = AnswerCache(Path(sys.argv[1]))\n"
        "name, one = sys.argv[2], CachedAnswer('x')\n"
        "for n in range(50): answers.put({f'{name}-{n}': one, f'both-{n}': CachedAnswer(name)})"
    )
    path = tmp_path / "answers.sqlite"
    with ExitStack() as stack:
        words = [sys.executable, "-c", code, str(path)]
        workers = [stack.enter_context(started([*words, name])) for name in "ab"]
        assert [worker.wait() for worker in workers] == [0, 0]
    found = AnswerCache(path).get([f"{name}-{n}" for name in ("a", "b", "both") for n in range(50)])
    assert len(found) == 150
