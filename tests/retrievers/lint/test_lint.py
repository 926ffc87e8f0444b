"""Every check with tools that deserve it and tools that do not, and brute force for what compares all pairs."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from itertools import combinations
from math import log, sqrt

import numpy as np
import pytest

from retrievers.errors import BadInput
from retrievers.lint import CHECKS, SEVERITIES, Finding, lint, neighbours, summary
from retrievers.lint.alike import HUB_FACTOR, NEIGHBOURS, hub_floor
from retrievers.lint.neighbours import neighbourhood, vectors
from retrievers.types import Parameter, Tool

WEATHER = Tool("weather", "get_forecast", "Weather for a city over the next seven days, hour by hour.", provider="Sky")
EMAIL = Tool("email", "send_email", "Delivers a message with attachments to one or more recipients.", provider="Post")
PLAYLIST = Tool("playlist", "youtube_playlist", "All videos in a public playlist with titles and lengths.")


def found(tools: list[Tool], check: str) -> list[Finding]:
    return [finding for finding in lint(tools) if finding.check == check]


def random_documents(seed: int, size: int, vocabulary: int = 40) -> list[list[str]]:
    """Some are copies of others with a word changed, some are empty, words are as unequal as in real text."""
    dice = random.Random(seed)
    words = [f"word{i}" for i in range(vocabulary)]
    weights = [1 / (i + 1) for i in range(vocabulary)]
    documents: list[list[str]] = []
    for _ in range(size):
        if documents and dice.random() < 0.3:
            document = [*dice.choice(documents)]
            if document:
                document[dice.randrange(len(document))] = dice.choice(words)
        else:
            document = dice.choices(words, weights, k=dice.randrange(16))
        documents.append(document)
    return [list(document) for document in dict.fromkeys(tuple(sorted(document)) for document in documents)]


def brute_force_cosines(documents: list[list[str]]) -> list[list[float]]:
    size = len(documents)
    frequency = Counter(word for document in documents for word in set(document))
    rows = [
        {word: (1 + log(n)) * (log((1 + size) / (1 + frequency[word])) + 1) for word, n in Counter(document).items()}
        for document in documents
    ]
    norms = [sqrt(sum(weight**2 for weight in row.values())) or 1.0 for row in rows]
    return [
        [sum(w * b.get(word, 0.0) for word, w in a.items()) / m / n for b, n in zip(rows, norms, strict=True)]
        for a, m in zip(rows, norms, strict=True)
    ]


def brute_force_clusters(cosines: list[list[float]], similarity: float) -> list[list[int]]:
    label = list(range(len(cosines)))
    for i, j in combinations(range(len(cosines)), 2):
        if cosines[i][j] >= similarity - 1e-5:
            old, new = max(label[i], label[j]), min(label[i], label[j])
            label = [new if value == old else value for value in label]
    groups = [[i for i, value in enumerate(label) if value == name] for name in sorted(set(label))]
    return [group for group in groups if len(group) > 1]


def brute_force_occurrences(cosines: list[list[float]], similarity: float, k: int) -> list[float]:
    counts = [0.0] * len(cosines)
    for i, row in enumerate(cosines):
        scored = {j: score for j, score in enumerate(row) if j != i and 1e-5 < score < similarity - 1e-5}
        best = sorted(scored.values(), reverse=True)
        last = best[k - 1] if len(best) >= k else 0.0
        ahead = [j for j, score in scored.items() if score > last + 1e-5]
        tied = [j for j, score in scored.items() if abs(score - last) <= 1e-5]
        for j in ahead:
            counts[j] += 1
        for j in tied:
            counts[j] += (k - len(ahead)) / len(tied)
    return counts


# A budget of 0 leaves every word out of the products, 200 the frequent ones; clusters must not notice.
@pytest.mark.parametrize("budget", [10**9, 2000, 200, 0])
@pytest.mark.parametrize("similarity", [0.9, 0.7])
@pytest.mark.parametrize("seed", range(6))
def test_clusters_are_those_of_brute_force(seed: int, similarity: float, budget: int) -> None:
    documents = random_documents(seed, 90)
    expected = brute_force_clusters(brute_force_cosines(documents), similarity)
    assert expected, "a test without clusters tests nothing"
    assert neighbourhood(vectors(documents), similarity, 10, budget=budget).clusters == expected


@pytest.mark.parametrize("k", [1, 3, 10])
@pytest.mark.parametrize("seed", range(6))
def test_occurrences_are_those_of_brute_force(seed: int, k: int) -> None:
    documents = random_documents(seed, 90)
    expected = brute_force_occurrences(brute_force_cosines(documents), 0.9, k)
    assert neighbourhood(vectors(documents), 0.9, k).occurrences == pytest.approx(expected, abs=1e-6)


def test_blocks_and_folding_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    matrix = vectors(random_documents(3, 200))
    whole = neighbourhood(matrix, 0.8, 10)
    monkeypatch.setattr(neighbours, "BLOCK", 7)
    monkeypatch.setattr(neighbours, "MAX_PAIRS", 3)
    steps: list[tuple[int, int]] = []
    blocks = neighbourhood(matrix, 0.8, 10, lambda done, total: steps.append((done, total)))
    assert blocks.clusters == whole.clusters
    assert blocks.occurrences == pytest.approx(whole.occurrences)
    assert [done for done, _ in steps] == sorted(done for done, _ in steps)
    assert steps[-1] == (matrix.shape[0], matrix.shape[0])


def test_good_tools_have_no_findings() -> None:
    assert lint([WEATHER, EMAIL, PLAYLIST]) == []


@pytest.mark.parametrize(
    ("name", "description", "severity"),
    [
        ("find_flights", "", "error"),
        ("find_flights", " \n—", "error"),
        ("find_flights", "Find flights.", "warning"),
        ("get all product", "Get all products", "warning"),
        ("triangle_area_height", "The area and height of a triangle", "hint"),
        ("find_flights", "Search airlines", "hint"),
    ],
)
def test_thin(name: str, description: str, severity: str) -> None:
    findings = found([Tool("1", name, description), EMAIL], "thin")
    assert [(finding.tool_ids, finding.severity) for finding in findings] == [(("1",), severity)]


@pytest.mark.parametrize(
    "description", ["Subtracts one number from another", "查询城市天气预报", "Cheap airline tickets"]
)
def test_not_thin(description: str) -> None:
    assert found([Tool("1", "sub", description)], "thin") == []


def test_duplicate_is_not_also_near_duplicate_or_same_name() -> None:
    tools = [WEATHER, replace(WEATHER, id="again", description=WEATHER.description + " "), EMAIL]
    (finding,) = lint(tools)
    assert (finding.check, finding.tool_ids, finding.severity) == ("duplicate", ("again", "weather"), "error")
    assert "`again`, `weather`" in finding.message


def test_near_duplicate_says_what_differs() -> None:
    (finding,) = lint([WEATHER, replace(WEATHER, id="copy", provider="Sun"), EMAIL, PLAYLIST])
    assert (finding.check, finding.tool_ids) == ("near-duplicate", ("copy", "weather"))
    assert "differ only in provider (`Sky`, `Sun`)" in finding.message


def test_near_duplicates_with_the_same_words_in_other_order() -> None:
    tools = [Tool("1", "celsius_to_fahrenheit"), Tool("2", "fahrenheit_to_celsius"), EMAIL]
    tools = [replace(tool, description="Converts a temperature between scales.") for tool in tools]
    (finding,) = found(tools, "near-duplicate")
    assert finding.tool_ids == ("1", "2")
    assert "differ only in name:" in finding.message


def test_near_duplicates_form_one_cluster_and_follow_the_threshold() -> None:
    text = "Current average price of petrol at all filling stations of one state, in dollars a gallon"
    tools = [Tool(state, f"gas price {state}", f"{text} in {state}.") for state in ("alaska", "hawaii", "ohio")]
    tools += [EMAIL, WEATHER, PLAYLIST]
    assert [f.tool_ids for f in lint(tools, similarity=0.6) if f.check == "near-duplicate"] == [
        ("alaska", "hawaii", "ohio")
    ]
    assert [f for f in lint(tools, similarity=1.0) if f.check == "near-duplicate"] == []


def catalogue_with_hub(size: int) -> list[Tool]:
    """Tools that share a word or two with one general tool, and nothing with each other."""
    tools = [
        Tool(f"{i:03}", f"alpha{i}x beta{i}x", f"gamma{i}x delta{i}x epsilon{i}x common{i % 12}") for i in range(size)
    ]
    return [*tools, Tool("hub", "everything", " ".join(f"common{i}" for i in range(12)))]


def test_hub() -> None:
    (finding,) = found(catalogue_with_hub(120), "hub")
    assert (finding.tool_ids, finding.severity) == (("hub",), "warning")


def test_no_hub_where_all_are_alike() -> None:
    assert found(catalogue_with_hub(120)[:-1], "hub") == []


def test_hub_floor_is_not_moved_by_the_hubs() -> None:
    usual = np.random.default_rng(1).poisson(NEIGHBOURS, 1000).astype(np.float64)
    with_hubs = np.concatenate([usual, np.full(50, 900.0)])
    assert HUB_FACTOR * NEIGHBOURS <= hub_floor(usual) == hub_floor(with_hubs) < 900


@pytest.mark.parametrize(
    "name",
    "xqzt17|a|api|endpoint1|search|get|data|test|GET|/v1/search|{id}|42||Get data|test2|bcdfg|getlocalemetadata|"
    "fetchalldividends|metacognitivemonitoringtool".split("|"),
)
def test_unsplittable(name: str) -> None:
    tools = [Tool("1", name, "Reads the locale of a visitor from the request."), EMAIL, WEATHER]
    (finding,) = found(tools, "unsplittable")
    assert (finding.tool_ids, finding.severity) == (("1",), "hint")


@pytest.mark.parametrize(
    "name",
    "youtube|weather|YouTube|getWeather|find_symbol|search_flights|sms|ip|k8s_list|covid19|cryptocurrency|"
    "recommendations|internationalization|send_get_request|天気|天|погода|HTTPServer|getLocaleMetaData|"
    "neighbourhood|authentication|Exa: search".split("|"),
)
def test_splittable(name: str) -> None:
    assert found([Tool("1", name, "Reads the locale of a visitor from the request."), EMAIL], "unsplittable") == []


def test_unsplittable_name_is_cut_into_words_of_the_catalogue() -> None:
    tools = [Tool(str(i), f"tool {i} about places", "Gives locale and currency of a country.") for i in range(2)]
    (finding,) = found([*tools, Tool("x", "localecurrency")], "unsplittable")
    assert "`locale_currency`" in finding.message
    assert finding.severity == "warning"  # there is no description to find it by


def test_a_run_that_other_descriptions_use_is_a_word() -> None:
    tools = [Tool(str(i), f"tool {i} about places", "Gives locale and currency of a country.") for i in range(2)]
    user = Tool("y", "country_facts", "Tells the localecurrency and the flag of a country.")
    assert found([*tools, user, Tool("x", "localecurrency")], "unsplittable") == []


def test_a_name_spelled_with_humps_in_its_description_is_indexed_by_its_words() -> None:
    tool = Tool("1", "geteventtypes", "GetEventTypes returns kinds of matches and leagues.")
    assert found([tool], "unsplittable") == []


def test_same_name() -> None:
    tab, wait = Parameter("tab", "", "Number of the browser tab"), Parameter("wait", "", "Seconds until giving up")
    one = Tool("1", "navigate", "Navigate to a URL", (tab,), provider="Playwright")
    two = Tool("2", "Navigate", "Navigate to the URL.", (wait,), "Web", "Puppets")
    other = Tool("3", "navigate", "Plans a walking route between two places", provider="Maps")
    (finding,) = found([one, two, other], "same-name")
    assert (finding.tool_ids, finding.severity) == (("1", "2"), "hint")
    assert "`Playwright`, `Puppets`" in finding.message


def test_parameters() -> None:
    silent = (Parameter("city", "string"), Parameter("days", "integer"))
    tools = [replace(WEATHER, parameters=silent), replace(EMAIL, parameters=silent)]
    described = (Parameter("list", "string", "Which playlist"), Parameter("page"))
    findings = found([*tools, replace(PLAYLIST, parameters=described)], "parameters")
    assert [finding.tool_ids for finding in findings] == [("email",), ("weather",)]


def test_parameters_have_one_finding_a_provider() -> None:
    silent = (Parameter("city", "string"),)
    tools = [replace(tool, parameters=silent, provider="One") for tool in (WEATHER, EMAIL, PLAYLIST)]
    assert [finding.tool_ids for finding in found(tools, "parameters")] == [("email", "playlist", "weather")]


def messy_catalogue() -> list[Tool]:
    dice = random.Random(7)
    names = ["search", "get weather", "getallorders", "find flights", "xqzt", "list_users"]
    texts = ["", "Search", "Weather of a city today", "All orders of one customer by date", "Cheap flights to anywhere"]
    return [
        Tool(f"{i:03}", dice.choice(names), dice.choice(texts), provider=dice.choice(["", "One", "Two", "Three"]))
        for i in range(150)
    ]


def test_order_of_the_tools_does_not_matter() -> None:
    tools = messy_catalogue()
    findings = lint(tools)
    shuffled = random.Random(1).sample(tools, len(tools))
    assert lint(shuffled) == findings == lint(tools)
    assert [SEVERITIES.index(f.severity) for f in findings] == sorted(SEVERITIES.index(f.severity) for f in findings)


def test_findings_name_known_tools_and_checks_in_one_line() -> None:
    tools = [*messy_catalogue(), Tool("evil", "get\x1b[31m\ndata" + "x" * 500, "")]
    known = {tool.id for tool in tools}
    for finding in lint(tools):
        assert finding.tool_ids
        assert known.issuperset(finding.tool_ids)
        assert finding.check in CHECKS
        assert finding.message.isprintable()
        assert len(finding.message) < 700


def test_summary_counts_every_check() -> None:
    findings = lint(messy_catalogue())
    counts = summary(findings)
    assert tuple(counts) == CHECKS
    assert sum(counts.values()) == len(findings)


@pytest.mark.parametrize("tools", [[], [Tool("1", "", "")], [Tool("1", "", ""), Tool("2", "!", "?")]])
def test_catalogues_with_next_to_nothing(tools: list[Tool]) -> None:
    assert {finding.check for finding in lint(tools)} <= {"thin", "unsplittable", "near-duplicate"}
    assert bool(lint(tools)) == bool(tools)


@pytest.mark.parametrize("similarity", [0.0, 1.1, float("nan")])
def test_a_threshold_that_means_nothing_is_refused(similarity: float) -> None:
    with pytest.raises(BadInput, match="similarity"):
        lint([WEATHER], similarity=similarity)
