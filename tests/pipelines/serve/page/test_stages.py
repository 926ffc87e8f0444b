"""The page shows why a tool has its rank, and a search with and without each stage."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from browsing import CONTRAST, chromium, needs_chromium, tab
from doubles import BM25_ONLY, ModelServer, plain_context
from rerankers import write_cross_encoder
from serving import Running, rewriter, running
from waiting import until

from retrievers.index import build
from retrievers.types import Tool

pytestmark = needs_chromium
TOOLS = [
    Tool("wx/forecast", "forecast", "Weather of the next ten days", (), "Weather", "Nimbus"),
    Tool("wx/history", "history", "Weather of past days", (), "Weather", "Nimbus"),
    Tool("fly/status", "flight-status", "Whether a flight lands in time", (), "Travel", "Skyfernet"),
    Tool("shop/coats", "coats", "Coat and jacket offers; need a coat?", (), "Shopping", "Wardrobe"),
    Tool("shop/idea", "gift-idea", "No idea what to give your sister", (), "Shopping", "Wardrobe"),
]
SISTER = "my sister lands at six and I've no idea if she'll need a coat"
EXAMPLES = [SISTER, "weather of the past days"]
LINES = ("forecast of the weather next days", "whether a flight lands in time")


def several_answers(_: Any, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    """Three answers, which agree on the first line and, two of them, on the second."""
    texts = (f"- {LINES[0]}\n- {LINES[1]}", f"- {LINES[0]}\n- {LINES[1]}", f"- {LINES[0]}")
    choices = [{"message": {"role": "assistant", "content": text}, "finish_reason": "stop"} for text in texts]
    return 200, {"model": body["model"], "choices": choices, "usage": {"completion_tokens": 9}}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("stages")
    build(folder / "index", TOOLS, BM25_ONLY, plain_context())
    model = ModelServer()
    model.manners = several_answers
    config = {
        "index": str(folder / "index"),
        "retriever": "bm25",
        "rewriter": rewriter(model, fusion={"raw": 0.3}, sampling={"temperature": 1.0, "answers": 3}),
        "rerank": {"path": str(write_cross_encoder(folder / "reranker"))},
        "examples": EXAMPLES,
    }
    with running(config) as made:
        made.until_ready()
        yield made
    model.stop()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as made:
        yield made


def test_an_answer_has_votes_and_ranks_before_the_reranker(server: Running) -> None:
    [result] = server.search(SISTER)["results"]
    assert (result["rewrite"]["lines"], result["rewrite"]["votes"]) == (list(LINES), [3, 2])
    first = [tool["id"] for tool in server.search(SISTER, rerank="off")["results"][0]["tools"]]
    assert [tool["fused_rank"] for tool in result["tools"]] == [first.index(tool["id"]) + 1 for tool in result["tools"]]
    [plain] = server.search(SISTER, rerank="off")["results"]
    assert {tool["fused_rank"] for tool in plain["tools"]} == {None}
    assert [model["role"] for model in server.client.get("/v1/models").json()["models"]] == [
        "retriever",
        "rewriter",
        "reranker",
    ]


def test_an_example_is_a_click_and_a_tool_tells_its_way(browser: Any, server: Running) -> None:
    with tab(browser, server.url) as at:
        page = at.go()
        page.wait_for_selector(".examples")
        assert at.texts(".examples a") == EXAMPLES
        page.click(f".examples a:has-text('{SISTER[:12]}')")
        page.wait_for_selector(".compared")
        assert [title.split("\n")[0] for title in at.texts(".column h2")] == ["Raw", "Rewritten, reranked"]
        assert at.texts(".lines small") == ["3 votes", "2 votes"]
        assert "Read the first" in page.inner_text(".outcome")
        assert "Reranker" in at.texts(".time th")
        [result] = server.search(SISTER, k=50)["results"]
        place = next(place for place, tool in enumerate(result["tools"]) if tool["id"] == "wx/forecast")
        row = page.locator(".column.right .tool").nth(place)
        assert f"fused\u00a0#{result['tools'][place]['fused_rank']} → reranked\u00a0#{place + 1}" in row.inner_text()
        row.locator("summary").click()
        said = row.locator(".why ol").inner_text()
        assert "The request as typed does not find it." in said
        assert f"Line 1, “{LINES[0]}”, ranks it 1st; 3 answers of the model voted for this line." in said
        assert "The reranker" in said


def test_each_stage_is_left_out_at_a_click_and_the_address_keeps_it(browser: Any, server: Running) -> None:
    with tab(browser, server.url) as at:
        page = at.go()
        at.ask(SISTER)
        page.wait_for_selector(".compared")
        page.click("[data-chip=right-rerank]")
        until(lambda: at.texts(".column.right h2")[0].startswith("Rewritten\n"))
        assert page.evaluate("() => document.activeElement.dataset.chip") == "right-rerank"
        assert "Not asked" in page.inner_text(".outcome [aria-label=Reranker]")
        page.click("[data-chip=left-rerank]")  # rewritten beside reranked
        until(lambda: at.texts(".column h2")[0].startswith("Reranked\n"))
        assert page.inner_text(".summary").startswith("The right setting ")
        page.reload()
        page.wait_for_selector(".compared")
        assert [title.split("\n")[0] for title in at.texts(".column h2")] == ["Reranked", "Rewritten"]
        for side, options in (("left", {"rewrite": "off"}), ("right", {"rerank": "off"})):
            [result] = server.search(SISTER, k=50, **options)["results"]
            assert at.texts(f".column.{side} .open") == [tool["name"] for tool in result["tools"]]


@pytest.mark.parametrize(("width", "dark"), [(1280, True), (390, False)])
def test_keys_change_stages_and_explain(browser: Any, server: Running, width: int, dark: bool) -> None:
    with tab(browser, server.url, width, dark) as at:
        page = at.go()
        at.ask(SISTER)
        page.wait_for_selector(".compared")
        page.keyboard.press("Escape")
        page.keyboard.press("j")
        page.keyboard.press("w")
        assert page.locator(".why[open]").count() == 1
        assert page.evaluate(CONTRAST) == []
        assert page.evaluate("() => document.documentElement.scrollWidth") <= width
        page.keyboard.press("c")
        page.wait_for_selector(".sides.alone")
        page.keyboard.press("r")
        page.wait_for_selector("[data-chip=right-rewrite][aria-pressed=false]")
        assert "with=rerank" in page.url
        page.keyboard.press("e")
        until(lambda: "with=raw" in page.url)
        page.wait_for_selector("[data-chip=right-rerank][aria-pressed=false]")
        page.keyboard.press("c")
        page.wait_for_selector(".compared")  # with what is recommended, not with the same again
        assert at.texts(".column h2")[0].startswith("Rewritten, reranked")
