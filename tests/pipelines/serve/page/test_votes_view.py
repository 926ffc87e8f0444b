"""The page switches the votes of earlier requests, and keeps the focus while it redraws."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from browsing import CONTRAST, chromium, needs_chromium, tab
from serving import Running, running
from waiting import until

pytestmark = needs_chromium
TRAIN = "got to be in Manchester by 10 on Tuesday, pick a train from Sheffield and pop it in my diary"
FOCUSED = "() => document.activeElement.id || document.activeElement.textContent.trim()"


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    """The default config."""
    with running({"index": "bundled:sample", "retriever": "auto"}) as made:
        yield made


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as made:
        yield made


def names(server: Running, votes: str) -> list[str]:
    return [tool["name"] for tool in server.search(TRAIN, votes=votes)["results"][0]["tools"]]


def titles(at: Any) -> list[str]:
    return [title.split("\n")[0] for title in at.texts(".column h2")]


def test_a_request_is_shown_with_and_without_votes(browser: Any, server: Running) -> None:
    with tab(browser, server.url) as at:
        page = at.go()
        page.wait_for_selector(".steps")
        assert "Similar earlier requests, whose tools are known, vote for these tools." in at.texts(".steps li")
        at.ask(TRAIN)
        page.wait_for_selector(".compared")
        assert titles(at) == ["Without votes", "With votes"]
        assert at.texts(".column.right .open") == names(server, "auto")
        assert at.texts(".column.left .open") == names(server, "off")
        assert names(server, "off") != names(server, "auto")
        assert page.inner_text(".summary").startswith("Votes bring in ")
        until(lambda: "10 votes" in page.inner_text(".outcome [aria-label=Votes]"))
        assert at.texts(".time th") == ["Raw search", "Detector", "Answer", "Total"]  # nothing was fused
        row = page.locator(".column.left .tool").first
        assert row.locator("summary").inner_text() == "votes\u00a0left\u00a0out → #1"
        row.locator("summary").click()
        assert "The request as typed, without votes, ranks it 1st." in row.locator(".why ol").inner_text()
        assert "probability" not in row.locator(".why ol").inner_text()  # it is calibrated with votes
        assert "similar earlier requests needed it; here they have no vote." in row.locator(".why ol").inner_text()


@pytest.mark.parametrize(("width", "dark"), [(1280, True), (390, False)])
def test_votes_are_left_out_at_a_click_or_a_key(browser: Any, server: Running, width: int, dark: bool) -> None:
    with tab(browser, server.url, width, dark) as at:
        page = at.go()
        at.ask(TRAIN)
        page.wait_for_selector(".compared")
        page.click("[data-chip=right-votes]")
        page.wait_for_selector(".sides.alone")
        assert at.texts(".chip") == ["Detector", "Votes"]
        assert at.texts(".column .open") == names(server, "off")
        assert "Not counted" in page.inner_text(".outcome [aria-label=Votes]")
        assert page.evaluate(CONTRAST) == []
        page.keyboard.press("c")  # beside what is recommended
        page.wait_for_selector(".compared")
        assert page.locator("[data-chip=left-votes]").get_attribute("aria-pressed") == "true"
        page.keyboard.press("v")
        page.wait_for_selector("[data-chip=right-votes][aria-pressed=true]")
        page.keyboard.press("v")
        page.wait_for_selector("[data-chip=right-votes][aria-pressed=false]")
        if width < 500:
            until(lambda: at.texts(".switch.narrow label") == ["Without votes", "With votes"])


def test_the_focus_stays_while_stages_change(browser: Any, server: Running) -> None:
    with tab(browser, server.url) as at:
        page = at.go()
        at.ask(TRAIN)
        page.wait_for_selector(".compared")
        assert page.evaluate(FOCUSED) == "answer"  # no longer the box: single keys work
        page.keyboard.press("j")
        first = page.evaluate(FOCUSED)
        assert first == at.texts(".column.left .open")[0]
        assert page.input_value("#utterance") == TRAIN
        page.locator(".column.right .open", has_text="find_connection").focus()
        page.keyboard.press("w")
        for key, selector in (
            ("d", "[data-chip=right-detect][aria-pressed=false]"),
            ("v", ".sides.alone"),
            ("c", ".compared"),
            ("c", ".sides.alone"),
        ):
            page.keyboard.press(key)
            page.wait_for_selector(selector)
            assert page.evaluate(FOCUSED) == "find_connection", key
            assert page.evaluate("() => document.activeElement.closest('.tool').querySelector('.why').open"), key
        page.click("#more summary")
        page.fill("#category", "no such category")
        page.press("#category", "Enter")
        page.wait_for_selector(".column .empty")
        assert page.evaluate(FOCUSED) == "answer"


def test_the_focus_moves_on_where_its_tool_is_gone(browser: Any, server: Running) -> None:
    with tab(browser, server.url) as at:
        page = at.go()
        at.ask(TRAIN)
        page.wait_for_selector(".compared")
        gone = next(name for name in names(server, "auto") if name not in names(server, "off"))
        page.locator(".column.right .open", has_text=gone).focus()
        place = names(server, "auto").index(gone)
        page.keyboard.press("v")
        page.wait_for_selector(".sides.alone")
        assert page.evaluate(FOCUSED) == names(server, "off")[place]


def test_parts_of_a_hybrid_are_shown_per_tool(browser: Any) -> None:
    with running({"index": "bundled:sample", "retriever": "hybrid"}) as hybrid, tab(browser, hybrid.url) as at:
        page = at.go()
        at.ask(TRAIN)
        page.wait_for_selector(".sides.alone")
        summary = page.locator(".why summary").first
        until(lambda: "dense" in summary.inner_text())
        assert "bm25\u00a0#" in summary.inner_text()
        assert page.locator(".chip").count() == 0  # there is nothing to leave out
        at.ask("Wann ist der Strom am billigsten")
        until(lambda: "multilingual" in summary.inner_text())
        summary.click()
        assert "multilingual ranks it 1st." in page.locator(".why ol").first.inner_text()
