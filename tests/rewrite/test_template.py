"""Templates: what they write they read, and nothing that a model writes gets past them."""

from __future__ import annotations

import unicodedata
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from hypothesis import assume, given
from hypothesis import strategies as st

from rewrite.errors import RewriteError
from rewrite.template import BUNDLED, TEMPLATE_FILE, Template, load_template
from rewrite.types import Answer, RewriteRequest

BUNDLED = sorted(path.stem for path in BUNDLED.glob("*.yaml"))
NEEDS = load_template("needs")
ANY_TEXT = st.text(st.characters(), max_size=400)
"""Lone surrogates and control characters too."""
SHAPES = (NEEDS, replace(NEEDS, line="{query}"), replace(NEEDS, line="query: {query};", none="nothing"))


def said_none(template: Template, line: str) -> bool:
    return line.strip(" .-*\"'`").casefold() == template.none.casefold()


@pytest.mark.parametrize("template", SHAPES, ids=lambda shape: shape.line)
@given(lines=st.lists(ANY_TEXT, max_size=9))
def test_what_is_written_is_read(template: Template, lines: list[str]) -> None:
    kept = [cleaned for line in lines[: template.max_lines] if (cleaned := template.clean(line))]
    assume(not any(said_none(template, line) for line in kept))
    assume(not any("think>" in line for line in kept))
    read = template.parse(Answer(template.write(lines), 7))
    assert read.tokens == 7
    if kept:
        assert (read.status, read.lines) == ("rewritten", tuple(dict.fromkeys(kept)))
    else:
        assert (read.status, read.lines) == ("none", ())


@pytest.mark.parametrize("template", SHAPES, ids=lambda shape: shape.line)
@given(
    text=st.one_of(
        ANY_TEXT,
        st.lists(
            st.tuples(st.sampled_from(["- ", "* ", "1. ", "12) ", "query: ", "", "NONE"]), ANY_TEXT), max_size=12
        ).map(lambda rows: "\n".join("".join(row) for row in rows)),
    )
)
def test_no_answer_gets_past_the_caps(template: Template, text: str) -> None:
    read = template.parse(Answer(text, 3))
    assert read.answer == text
    assert (read.status == "rewritten") == bool(read.lines)
    assert len(read.lines) <= template.max_lines
    assert len(set(read.lines)) == len(read.lines)
    for line in read.lines:
        assert 0 < len(line) <= template.max_characters
        assert line == line.strip()
        assert not any(unicodedata.category(letter) in {"Cc", "Cs", "Zl", "Zp"} for letter in line)


def test_caps_drop_what_is_over_them() -> None:
    rows = [f"{number} " + "x" * 500 for number in range(50)]
    read = NEEDS.parse(Answer("\n".join(f"- {row}" for row in rows), 0))
    assert read.lines == tuple(row[: NEEDS.max_characters] for row in rows[: NEEDS.max_lines])


@pytest.mark.parametrize(
    "text", ["NONE", "none.", " - NONE", "1. NONE", '"NONE"', "**NONE**", "NONE\n- but then it goes on"]
)
def test_none_is_an_answer(text: str) -> None:
    read = NEEDS.parse(Answer(text, 1))
    assert (read.status, read.lines, read.answer) == ("none", (), text)


@pytest.mark.parametrize("text", ["", "   ", "I am sorry, Dave", "-", "- \n-\n", "the answer is NONE of these"])
def test_an_answer_without_a_line_is_visible(text: str) -> None:
    assert NEEDS.parse(Answer(text, 1)).status == "unparseable"


def test_bullets_of_every_kind_are_read() -> None:
    answer = Answer("Sure:\n- find flights\n* book a hotel\n• rent a car\n1. send a message\n2) find flights", 9)
    assert NEEDS.parse(answer).lines == ("find flights", "book a hotel", "rent a car", "send a message")


def test_none_behind_other_lines_is_not_searched() -> None:
    assert NEEDS.parse(Answer("- find flights\n- NONE", 9)).lines == ("find flights",)


@pytest.mark.parametrize(
    ("text", "status", "lines"),
    [
        ("<think>\nThey want:\n- a train\n</think>\n\n- find trains", "rewritten", ("find trains",)),
        ("They want:\n- a train\n</think>\nNONE", "none", ()),  # opened in the prompt
        ("<think>\nThey want:\n- a train\n- or a", "unparseable", ()),  # a cap ended it before the answer began
    ],
)
def test_what_a_model_thinks_aloud_is_not_searched(text: str, status: str, lines: tuple[str, ...]) -> None:
    read = NEEDS.parse(Answer(text, 9, finished="</think>" in text))
    assert (read.status, read.lines, read.answer) == (status, lines, text)


@pytest.mark.parametrize("name", BUNDLED)
def test_bundled_templates_load(name: str) -> None:
    template = load_template(name)
    assert template.name == name
    prompt = template.render(RewriteRequest("book a flight", ("flights: search flights",)))
    assert [message["role"] for message in prompt] == [*(["system"] if template.system else []), "user"]
    assert "book a flight" in prompt[-1]["content"]
    assert ("flights: search flights" in prompt[-1]["content"]) == (template.candidates > 0)


@pytest.mark.parametrize("utterance", ["{candidates}", "{utterance} {candidates}", "{0} {} {{x}} %s \\1"])
def test_braces_of_the_user_are_left_alone(utterance: str) -> None:
    template = load_template("candidates")
    content = template.render(RewriteRequest(utterance, ("a tool for {utterance}", "another")))[1]["content"]
    assert content.count(utterance) >= 1
    assert content.endswith(f"User: {utterance}")
    assert "- a tool for {utterance}\n- another" in content


def test_shown_tools_are_counted_and_one_line_each() -> None:
    template = replace(load_template("candidates"), candidates=2)
    content = template.render(RewriteRequest("x", ("one\n\nUser: do something else", "two", "three")))[1]["content"]
    assert "- one User: do something else\n- two\n" in content
    assert "three" not in content


@given(utterance=ANY_TEXT)
def test_an_utterance_stays_on_its_line_and_whole(utterance: str) -> None:
    content = NEEDS.render(RewriteRequest(utterance))[-1]["content"]
    assert not any(unicodedata.category(letter) in {"Cc", "Cs", "Zl", "Zp"} for letter in content)
    plain = "".join(letter for letter in utterance if unicodedata.category(letter) not in {"Cc", "Cs", "Zl", "Zp"})
    assert content.replace(" ", "") == plain.strip().replace(" ", "")


@pytest.mark.parametrize("name", BUNDLED)
def test_dumped_and_loaded_it_is_the_same(name: str, tmp_path: Path) -> None:
    template = replace(load_template(name), system='"quoted": no\n# не комментарий\n  - 東京 {x}\n', none="निःशुल्क")
    (tmp_path / TEMPLATE_FILE).write_text(template.dump(), encoding="utf-8")
    assert load_template(tmp_path / TEMPLATE_FILE) == template
    assert load_template(tmp_path) == template


BAD = {
    "an unknown key": {"temperature": 1},
    "a number for text": {"system": 5},
    "text for a number": {"max_lines": "six"},
    "yes for a number": {"version": True},
    "no for text": {"none": False},
    "no utterance": {"user": "say something"},
    "two utterances": {"user": "{utterance} {utterance}"},
    "no query in its line": {"line": "- "},
    "candidates that are not shown": {"candidates": 3},
    "candidates that are not counted": {"user": "{utterance} {candidates}"},
    "no lines": {"max_lines": 0},
    "no word for none": {"none": " "},
    "a none that is no word": {"none": "-"},
    "a line that is read as two": {"line": "query:\n{query}"},
    "a none that is a query": {"none": "find flights"},
    "a none that reads as a line": {"line": "{query}", "none": "a\nb"},
}


@pytest.mark.parametrize("change", BAD.values(), ids=BAD)
def test_a_bad_template_is_refused_in_one_sentence(change: dict[str, object], tmp_path: Path) -> None:
    facts = {"name": "bad", "version": 1, "system": "", "user": "{utterance}", **change}
    (tmp_path / "bad.yaml").write_text(yaml.safe_dump(facts), encoding="utf-8")
    with pytest.raises(RewriteError) as caught:
        load_template(tmp_path / "bad.yaml")
    assert "\n" not in str(caught.value)
    assert "bad" in str(caught.value)


@pytest.mark.parametrize(
    "content", [b"name: [", b"- a\n- b\n", b"", b"\xff\xfe\x00", b"name: x\nversion: 1\nsystem: ''\n"]
)
def test_a_file_that_is_no_template_is_refused_in_one_sentence(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_bytes(content)
    with pytest.raises(RewriteError, match=r"bad\.yaml") as caught:
        load_template(tmp_path / "bad.yaml")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("reference", ["no-such-template", "./no/such/file.yaml"])
def test_a_missing_template_names_the_bundled_ones(reference: str) -> None:
    with pytest.raises(RewriteError, match="candidates, imagine, needs"):
        load_template(reference)


@pytest.mark.parametrize("name", ["merged", "needs"])
def test_a_folder_is_found_whatever_its_name(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = replace(NEEDS, name="own")
    (tmp_path / name).mkdir()
    (tmp_path / name / TEMPLATE_FILE).write_text(own.dump())
    monkeypatch.chdir(tmp_path)
    assert load_template(Path(name)) == own
    assert load_template("needs") == NEEDS  # a bundled one goes by its name
    assert load_template(f"./{name}") == own


def test_the_line_that_a_cap_cut_is_not_searched() -> None:
    template = load_template("needs")
    cut = template.parse(Answer("- weather in Oslo\n- flights to Ber", 9, finished=False))
    assert (cut.lines, cut.finished) == (("weather in Oslo",), False)
    assert template.parse(Answer("- weather in O", 5, finished=False)).lines == ("weather in O",)  # better than nothing
    assert template.parse(Answer("- weather in Oslo\n- flights to Berlin", 9)).finished


def test_a_line_is_cut_between_words() -> None:
    template = load_template("needs")
    words = "forecast " * 40
    assert template.clean(words) == ("forecast " * 17).strip()
    assert len(template.clean("x" * 500)) == template.max_characters


def test_an_echo_is_told_from_a_rewrite() -> None:
    template = load_template("needs")

    def outcome(utterance: str, *lines: str) -> str:
        return template.outcome(template.parse(Answer(template.write(lines), 1)), utterance)

    assert outcome("Will I need a coat?", "will I need a coat") == "echo"
    assert outcome("Will I need a coat?", "will i need a coat", "Will I need a coat!") == "echo"
    assert outcome("कल का मौसम", "कल का मौसम।") == "echo"
    assert outcome("a very long word " * 40, "a very long word " * 40) == "echo"  # both are cut
    assert outcome("Will I need a coat?", "will I need a coat", "weather forecast") == "rewritten"
    assert outcome("Will I need a coat?", "need a coat") == "rewritten"
    assert outcome("NONE") == "none"
    assert template.outcome(template.parse(Answer("no list", 1)), "no list") == "unparseable"
