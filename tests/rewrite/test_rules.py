"""A user's own words with less around them."""

from __future__ import annotations

import doctest

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewrite import rules as reduce
from rewrite.rules import MAX_CLAUSES, reduce_text, split_clauses, variants


def test_the_example_of_the_module_holds() -> None:
    assert doctest.testmod(reduce).failed == 0


@pytest.mark.parametrize(
    ("text", "short"),
    [
        ("Could you stop the washing machine in the utility room?", "stop the washing machine in the utility room"),
        ("Find the area of a triangle with a base of 10 units", "Find the area of a triangle with a base of units"),
        ("Please send a mail to bob@example.org about the 3rd invoice", "send a mail about the invoice"),
        ("Establish a connection to the server nicknamed 'text01'", "Establish a connection to the server nicknamed"),
        ("the weather", ""),  # nothing to take away
        ("Please", ""),  # nothing left
    ],
)
def test_names_numbers_quotes_and_courtesies_go(text: str, short: str) -> None:
    assert reduce_text(text) == short


def test_nouns_of_a_language_that_writes_them_large_stay() -> None:
    assert "Kronen" in reduce_text("wie viel sind 300 Kronen, und was nimmt mir die Bank dafür ab")


def test_a_text_is_cut_where_a_new_need_begins() -> None:
    assert split_clauses("Find a hotel in Rome and also check the weather. Then book a table") == [
        "Find a hotel in Rome",
        "and also check the weather.",
        "Then book a table",
    ]
    assert split_clauses("帮我查一下北京的天气。再订一张去上海的机票") == [
        "帮我查一下北京的天气。",
        "再订一张去上海的机票",
    ]
    assert split_clauses("find a hotel in Rome") == []


@given(st.text(max_size=300))
def test_any_text_is_survived(text: str) -> None:
    found = variants(text)
    assert len(found) == len(set(found))
    assert len(split_clauses(text)) <= MAX_CLAUSES
    assert all(each.strip() and len(each) <= len(text) for each in found)
