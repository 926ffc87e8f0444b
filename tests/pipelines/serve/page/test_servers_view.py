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
