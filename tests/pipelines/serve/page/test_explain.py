"""The page explains a raw ranking: parts of the retriever, votes of earlier queries, the detector's time."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from browsing import CONTRAST, chromium, needs_chromium, playwright, tab
from serving import Running, running
from waiting import until

from pipelines.serve.calls.settings import AccessRules
from pipelines.serve.keys import make_key

SKINS = "teenager. my credit card. game skins. make it stop"
KEY, DIGEST = make_key()
WIDE, WIDE_DIGEST = make_key()
LIMITED = {"name": "bank", "sha256": DIGEST, "scopes": ["search"], "access": {"search": ["Pennywharf Bank"]}}
ALMOST_ALL = {"name": "most", "sha256": WIDE_DIGEST, "scopes": ["search"], "access": {"search": ["*/*"]}}


@pytest.fixture(scope="module")
def masstool() -> Iterator[Running]:
    with running({"index": "bundled:sample", "retriever": "masstool", "keys": [LIMITED, ALMOST_ALL]}) as made:
        yield made


def test_masstool_shows_ranks_without_votes_and_the_votes(masstool: Running) -> None:
    answer = masstool.post("/v1/explain", utterance=SKINS).json()
    [part] = answer["parts"]
    assert part["name"] == "without votes"
    assert len(part["tools"]) == 50
    assert 0 < answer["voters"] <= 10
    assert all(0 < votes <= answer["voters"] for votes in answer["votes"].values())
    first = masstool.search(SKINS, k=3)["results"][0]["tools"][0]["id"]
    assert answer["votes"][first]
    assert "utterance" not in answer  # earlier queries are counted, never shown


def test_a_search_leaves_votes_out(masstool: Running) -> None:
    [part] = masstool.post("/v1/explain", utterance=SKINS).json()["parts"]
    plain, usual = (
        [tool["id"] for tool in masstool.search(SKINS, k=50, votes=votes)["results"][0]["tools"]]
        for votes in ("off", "auto")
    )
    assert plain == part["tools"]
    assert plain != usual
    assert masstool.client.get("/v1/about").json()["votes"]
    assert masstool.post("/v1/search", utterance=SKINS, votes="none").status_code == 422


def test_a_key_learns_only_of_its_own_tools(masstool: Running) -> None:
    headers = {"Authorization": f"Bearer {KEY}"}
    own = masstool.client.post("/v1/explain", json={"utterance": SKINS}, headers=headers).json()
    assert {tool.split("/")[0] for tool in [*own["parts"][0]["tools"], *own["votes"]]} == {"pennywharf"}
    assert own["voters"] < masstool.post("/v1/explain", utterance=SKINS).json()["voters"]
    providers = [tool.provider for tool in masstool.gateway.catalogue.current.index.tools.values()]
    assert len(own["parts"][0]["tools"]) == providers.count("Pennywharf Bank")  # none is too deep in the ranking


def test_rights_are_tested_away_from_other_requests_and_no_further_than_shown(
    masstool: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads, may_find = list[str](), AccessRules.may_find

    def note(rules: AccessRules, tool_id: str, provider: str) -> bool:
        threads.append(threading.current_thread().name)
        return may_find(rules, tool_id, provider)

    monkeypatch.setattr(AccessRules, "may_find", note)
    wide = masstool.client.post("/v1/explain", json={"utterance": SKINS}, headers={"Authorization": f"Bearer {WIDE}"})
    assert len(wide.json()["parts"][0]["tools"]) == 50
    assert 50 <= len(threads) < 120
    assert {name.partition("_")[0] for name in threads} == {"batch"}


def test_requests_are_bounded(masstool: Running) -> None:
    assert masstool.post("/v1/explain", utterance="").status_code == 422
    assert masstool.post("/v1/explain", utterance="word " * 1_601).status_code == 422
    assert masstool.post("/v1/explain", utterance=[SKINS]).status_code == 422


@needs_chromium
@pytest.mark.parametrize("dark", [False, True])
def test_the_page_tells_of_votes_and_of_the_detector(masstool: Running, dark: bool) -> None:
    with chromium() as browser, tab(browser, masstool.url, dark=dark) as at:
        page = at.go()
        at.ask(SKINS)
        page.wait_for_selector(".column.right .why")
        first = page.locator(".column.right .tool").first
        first.locator("summary").click()
        way = first.locator(".why ol")
        until(lambda: "Without earlier requests it would be" in way.inner_text())
        assert "similar earlier requests needed it." in way.inner_text()
        assert at.texts(".time th")[:2] == ["Raw search", "Detector"]
        assert page.evaluate(CONTRAST) == []
        page.click("[data-chip=left-detect]")
        page.click("[data-chip=left-votes]")
        until(lambda: at.texts(".column h2")[0].startswith("Without detector"))
        page.set_viewport_size({"width": 390, "height": 800})
        assert at.texts(".switch.narrow label") == ["With detector", "Without detector"]


@needs_chromium
def test_results_do_not_wait_for_their_explanation(masstool: Running) -> None:
    with chromium() as browser, tab(browser, masstool.url) as at:
        page, held = at.go(), list[Any]()
        page.route("**/v1/explain", lambda route: held.append(route))
        at.ask(SKINS)
        page.wait_for_selector(".column.right .why")
        first = page.locator(".column.right .tool").first
        first.locator("summary").click()
        way = first.locator(".why ol")
        assert "Without earlier requests" not in way.inner_text()
        first.locator(".open").focus()
        until(lambda: page.locator(".why").count() and len(held) == 1)
        held[0].continue_()
        until(lambda: "Without earlier requests it would be" in way.inner_text())
        assert first.locator(".why[open]").count() == 1
        assert first.locator(".open:focus").count() == 1


@needs_chromium
def test_a_late_explanation_is_not_that_of_the_next_question(masstool: Running) -> None:
    with chromium() as browser, tab(browser, masstool.url) as at:
        page, held = at.go(), list[Any]()
        page.route("**/v1/explain", lambda route: held.append(route))
        for number, text in enumerate((SKINS, "will I need a coat tonight"), 1):
            with page.expect_request("**/v1/explain"):
                at.ask(text)
            until(lambda number=number: page.locator(".why").count() and len(held) == number)
        held[1].fulfill(json={"parts": [], "voters": 7, "votes": {}})
        until(lambda: "of 7 similar earlier requests" in page.locator(".why ol").first.text_content())
        with suppress(playwright.Error):  # the page no longer waits for it
            held[0].fulfill(json={"parts": [], "voters": 9, "votes": {}})
        page.wait_for_timeout(100)
        assert "of 7 similar earlier requests" in page.locator(".why ol").first.text_content()


def parts(answer: dict[str, Any]) -> list[str]:
    return [part["name"] for part in answer["parts"]]


def test_a_hybrid_shows_its_parts_and_bm25_has_none() -> None:
    with running({"index": "bundled:sample", "retriever": "hybrid"}) as server:
        answer = server.post("/v1/explain", utterance=SKINS).json()
        assert (parts(answer), answer["voters"], answer["votes"]) == (["bm25", "dense"], 0, {})
        assert parts(server.post("/v1/explain", utterance="Wann ist der Strom am billigsten").json()) == [
            "multilingual"
        ]
    with running({"index": "bundled:sample", "retriever": "bm25"}) as server:
        assert server.post("/v1/explain", utterance=SKINS).json() == {"parts": [], "voters": 0, "votes": {}}
