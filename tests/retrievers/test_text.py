from __future__ import annotations

import doctest

import pytest
from hypothesis import given
from hypothesis import strategies as st

import retrievers.text
from retrievers.text import clean, document, tokens, words
from retrievers.types import Parameter, Tool


def test_the_examples_in_the_docstring_hold() -> None:
    assert doctest.testmod(retrievers.text).failed == 0


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("getWeatherByCity", ["get", "Weather", "By", "City"]),
        ("find_symbol", ["find", "symbol"]),
        ("v2/get-meta-data", ["v2", "get", "meta", "data"]),
        ("HTTPServer", ["HTTP", "Server"]),
        ("math.factorial", ["math", "factorial"]),
        ("parseURL2JSON", ["parse", "URL2JSON"]),
        ("größeÄndern", ["größe", "Ändern"]),
        ("__", []),
    ],
)
def test_names_are_split_into_words(name: str, expected: list[str]) -> None:
    assert words(name) == expected


def test_split_names_match_what_people_type() -> None:
    for name, asked in [
        ("getWeatherByCity", "weather by city"),
        ("YouTube", "youtube"),
        ("v2/get-meta-data", "meta data"),
    ]:
        assert set(tokens(asked)) <= set(tokens(name))


def test_plurals_and_function_words_do_not_matter() -> None:
    assert tokens("What are the flights to my cities?") == ["flight", "city"]
    assert tokens("bus status analysis boxes") == ["bus", "status", "analysis", "box"]


def test_unspaced_scripts_give_pairs() -> None:
    assert tokens("天气预报API") == ["天气", "气预", "预报", "api"]
    assert tokens("雨") == ["雨"]


@given(st.text())
def test_any_text_gives_clean_text_and_tokens(text: str) -> None:
    cleaned = clean(text)
    cleaned.encode("utf-8")
    assert all(token and token == token.strip() and "\n" not in token for token in tokens(cleaned))


def test_a_tool_reads_as_its_name_its_purpose_and_its_parameters() -> None:
    tool = Tool(
        "p/getRate", "getRate", "Exchange rate.", (Parameter("pair", "string", "e.g. EURUSD"),), "Money", "Larkchange"
    )
    assert (
        document(tool)
        == "get Rate\nExchange rate.\nParameters: pair (string): e.g. EURUSD\nFrom: Larkchange, Money\ngetRate"
    )
    assert document(tool, ["description"]) == "Exchange rate."
    assert document(Tool("x", "Weather: now")) == "Weather: now"


def test_vowel_signs_and_accents_stay_with_their_letters() -> None:
    assert tokens("मौसम की जानकारी") == ["मौसम", "की", "जानकारी"]
    assert tokens("cafe\u0301 naïve") == ["café", "naïve"]
