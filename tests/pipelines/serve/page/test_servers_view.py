"""The page's view of servers: their health, a tool tried by hand, and the newest calls."""

from __future__ import annotations

import sys
from collections.abc import Callable

from browsing import chromium, needs_chromium, tab
from paths import SUPPORT
from serving import Running
from waiting import until

Serve = Callable[..., Running]


@needs_chromium
def test_servers_are_shown_and_a_tool_can_be_tried(serve: Serve) -> None:
    source = {"name": "hostile", "command": [sys.executable, str(SUPPORT / "hostile_mcp.py")]}
    server = serve(mcp=[source], anonymous=["search", "call", "admin"], admin=True)
    until(lambda: "hostile/echo" in server.gateway.catalogue.current.index.tools)
    with chromium() as browser, tab(browser, server.url) as at:
        page = at.go("/#/calls")
        page.wait_for_selector("#upstreams tbody tr")
        assert at.texts("#upstreams tbody td")[:2] == ["command", "up"]
        page.fill("#call-tool", "hostile/echo")
        page.fill("#call-arguments", '{"text": "<b>hello</b>"}')
        page.click("#call-form button")
        page.wait_for_selector("#call-result pre")
        assert page.inner_text("#call-result pre") == "<b>hello</b>"
        page.wait_for_selector("#calls tbody tr")
        assert at.texts("#calls tbody td")[1:4] == ["anonymous", "hostile/echo", "ok"]
        page.fill("#call-arguments", "{}")
        page.click("#call-form button")
        page.wait_for_selector("#call-result .trouble")
        assert "issing: text" in page.inner_text("#call-result .trouble")
        page.click("#upstreams tbody a")  # its tools in the catalogue, and one of them back here
        page.click("button.open:has-text('fail')")
        page.click("#tool a")
        page.wait_for_selector("#call-form:visible")
        assert page.input_value("#call-tool") == "hostile/fail"
        page.set_viewport_size({"width": 390, "height": 800})
        before = "(node) => getComputedStyle(node, '::before').content"
        assert page.eval_on_selector("#upstreams tbody td", before) == '"Kind"'
        assert page.evaluate("document.documentElement.scrollWidth") <= 390


@needs_chromium
def test_without_the_scope_it_says_so_and_asks_for_nothing(serve: Serve) -> None:
    server = serve()
    with chromium() as browser, tab(browser, server.url) as at:
        page = at.go("/#/calls")
        page.wait_for_selector("#upstreams .notice")
        assert "a key with the scope “call”" in page.inner_text("#upstreams .notice")
        assert page.locator(".trouble").count() == 0
        assert not page.locator("#call-form").is_visible()
        assert not any("/v1/upstreams" in address for address in at.asked)


@needs_chromium
def test_all_tabs_fit_a_narrow_screen(serve: Serve) -> None:
    server = serve(examples=["weather of the past days"])
    inside = """(link) => {
      const [own, nav] = [link, link.parentElement].map((node) => node.getBoundingClientRect());
      return own.left >= nav.left && own.right <= nav.right && own.right <= innerWidth;
    }"""
    with chromium() as browser:
        for width in (390, 320):
            with tab(browser, server.url, width) as at:
                page = at.go("/#/calls")
                page.wait_for_selector("#upstreams .notice")
                assert page.eval_on_selector_all("nav a", f"(links) => links.map({inside})") == [True] * 5
                page.click("nav a:text-is('Ask')")
                page.wait_for_selector(".examples")
                above = page.locator("#ask-form .options").bounding_box()
                below = page.locator(".inside").first.bounding_box()
                assert below["y"] - above["y"] - above["height"] >= 16
