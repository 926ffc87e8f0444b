"""What an answer leaves out: lines that lacked where it was said in error, added where that costs nothing."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

from rewrite.align.completed import LEAST, complete, completed_pairs, pooled
from rewrite.align.query import Query
from rewrite.align.samples import Sample
from rewrite.sft.examples import Example
from rewrite.template import load_template
from rewrite.types import Answer

TEMPLATE = load_template("needs")
PLACES = 3
"""Tools that are served: a line finds its own tool, and what it finds second if there is room."""
SECOND = {"fly": "flights", "stay": "rooms"}


def _served(lines: Sequence[str]) -> list[str]:
    second = [SECOND[line] for line in lines if line in SECOND]
    return [*lines, *second][:PLACES]


def _reward(queries: Sequence[Query], answers: Sequence[Answer]) -> list[float]:
    found = [set(_served(TEMPLATE.parse(answer).lines)) for answer in answers]
    return [
        len(tools & set(query.example.gold)) / len(query.example.gold)
        for query, tools in zip(queries, found, strict=True)
    ]


def _query(name: str, lines: tuple[str, ...], gold: tuple[str, ...] = (), source: str = "trips") -> Query:
    return Query(source, Example(name, f"thing {name}", lines, gold or lines))


def _sample(query: Query, *answers: tuple[str, ...]) -> Sample:
    count = len(answers)
    texts = tuple(TEMPLATE.write(lines) for lines in answers)
    facts = (query.source, query.example.id, query.example.utterance, ())
    return Sample(*facts, texts, (True,) * count, (True,) * count, (0.0,) * count, 0.0, 1.0)


RIGHT = _query("right", ("fly", "pay"))
OTHERS = [_query("one", ("fly", "rent")), _query("two", ("fly", "rent")), _query("three", ("fly", "eat"))]
SAMPLES = [_sample(query, ("fly", "pay"), ("pay",)) for query in (RIGHT, *OTHERS)]


def test_a_target_is_completed_by_what_lacked_where_it_was_said_in_error() -> None:
    pairs = completed_pairs(SAMPLES, [RIGHT, *OTHERS], _reward, TEMPLATE, 5)
    assert [(pair.id, pair.chosen, pair.rejected) for pair in pairs] == [
        ("right", TEMPLATE.write(("fly", "pay", "rent")), TEMPLATE.write(("fly", "pay")))
    ]
    assert pairs[0].utterance == "thing right"
    assert pairs[0].rewards == (fmean((1, 1, 1, 0.5)), fmean((1, 0.5, 0.5, 0.5)))


def test_every_query_with_that_target_gets_the_pair_and_other_catalogues_do_not() -> None:
    again, elsewhere = _query("again", ("fly", "pay")), _query("right", ("fly", "pay"), source="shops")
    pairs = completed_pairs(SAMPLES, [RIGHT, again, elsewhere, *OTHERS], _reward, TEMPLATE, 5)
    assert [(pair.source, pair.id) for pair in pairs] == [("trips", "right"), ("trips", "again")]


def test_what_the_answer_finds_for_its_own_query_is_not_given_away() -> None:
    careful = _query("right", ("fly", "pay"), ("fly", "pay", "flights"))  # the third place is taken by a second hit
    pairs = completed_pairs(SAMPLES, [careful, *OTHERS], _reward, TEMPLATE, 5)
    assert pairs == []  # "rent" would earn more on average


def test_a_query_that_never_said_its_target_loses_nothing_either() -> None:
    silent = _query("silent", ("fly", "pay"), ("fly", "pay", "flights"))  # nobody knows what a further line costs it
    pairs = completed_pairs(SAMPLES, [RIGHT, silent, *OTHERS], _reward, TEMPLATE, 5)
    assert [pair.id for pair in pairs] == ["right"]


def test_a_query_counts_once_however_it_spells_an_answer() -> None:
    twice = _sample(RIGHT, ("fly", "pay"))
    spelled = replace(twice, answers=("- fly\n- pay", "* fly\n* pay"), readable=(True,) * 2)
    assert pooled([spelled], [RIGHT, *OTHERS], TEMPLATE) == {}


def test_what_does_not_pay_off_is_the_worse_one() -> None:
    crowd = [_query(f"right {number}", ("fly", "stay"), ("fly", "stay", "flights")) for number in range(3)]
    odd = _query("odd", ("fly", "stay", "swim"), ("fly", "stay", "swim"))
    said = pooled([_sample(query, ("fly", "stay")) for query in (*crowd, odd)], [*crowd, odd], TEMPLATE)
    found = complete(said, _reward, TEMPLATE, 5)[("trips", ("fly", "stay"))]
    assert (found.better, found.worse) == (("fly", "stay"), ("fly", "stay", "swim"))
    assert found.rewards[0] > found.rewards[1]


def test_lines_are_added_one_by_one_up_to_a_number() -> None:
    lacking = [_query(f"q{number}", ("fly", line)) for number, line in enumerate(("eat", "rent", "eat", "swim"))]
    asked = [_query("short", ("fly",)), *lacking]
    said = pooled([_sample(query, ("fly",)) for query in asked], asked, TEMPLATE)
    grown = [complete(said, _reward, TEMPLATE, most) for most in (1, 2, 3, 5)]
    lines = [found[("trips", ("fly",))].better if found else None for found in grown]
    assert lines == [None, ("fly", "eat"), ("fly", "eat", "rent"), ("fly", "eat", "rent")]
    few = completed_pairs([_sample(query, ("fly",)) for query in asked], asked, _reward, TEMPLATE, 2)
    assert few[0].chosen == TEMPLATE.write(("fly", "eat"))


def test_every_line_added_is_the_best_of_all_that_lacked() -> None:
    """Against trying everything."""
    lines = ("eat", "rent", "swim", "read")
    asked = [_query("own", ("fly",)), *(_query(f"q{n}", ("fly", lines[n % 3 if n % 2 else n % 4])) for n in range(12))]
    said = pooled([_sample(query, ("fly",)) for query in asked], asked, TEMPLATE)
    found = complete(said, _reward, TEMPLATE, 2)[("trips", ("fly",))]

    def mean(trial: tuple[str, ...]) -> float:
        return fmean(_reward(asked, [Answer(TEMPLATE.write(trial), 0)] * len(asked)))

    best = max(mean(trial) for trial in itertools.product(("fly",), lines))
    assert found.rewards == (best, mean(("fly",)))


def test_what_was_said_to_hardly_anybody_tells_nothing() -> None:
    assert pooled(SAMPLES[: LEAST - 1], [RIGHT, *OTHERS], TEMPLATE) == {}
    strangers = [_sample(_query("stranger", ("x",)), ("fly", "pay"))] * 3
    assert pooled(strangers, [RIGHT, *OTHERS], TEMPLATE) == {}
    left_alone = _query("alone", ())
    assert completed_pairs([_sample(left_alone, ())] * 3, [left_alone], _reward, TEMPLATE, 5) == []
