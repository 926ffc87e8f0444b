"""Tools of running MCP servers in the catalogue: imported once, or kept in sync."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest
from mcp_servers import ToolShop, over_http
from paths import SUPPORT
from serving import Running
from waiting import until

Serve = Callable[..., Running]
LOCAL = {"hosts": ["127.0.0.1"], "allow_private": True, "seconds": 30.0}
ADMIN = {"admin": True, "anonymous": ["search", "write", "admin"]}


def held(server: Running, provider: str = "shop") -> set[str]:
    page = server.client.get("/v1/tools", params={"provider": provider}).json()
    return {tool["id"] for tool in page["tools"]}


def test_a_running_server_is_imported_page_by_page(serve: Serve) -> None:
    server = serve(imports=LOCAL, **ADMIN)
    with over_http(ToolShop("mend", "wash", "iron", "fold", "dye")) as url:
        answer = server.post("/v1/admin/import", url=url, format="mcp-server")
    assert (answer.status_code, answer.json()["added"]) == (200, 5), answer.text
    assert held(server) == {f"shop/{name}" for name in ("mend", "wash", "iron", "fold", "dye")}
    got = server.client.get("/v1/tools/shop/dye").json()
    assert (got["provider"], got["schema"]["properties"]) == ("shop", {"what": {"type": "string"}})


@pytest.mark.parametrize(
    ("rules", "code"),
    [
        ({"allow_private": True}, "forbidden"),  # no host is allowed
        ({"hosts": ["127.0.0.1"]}, "invalid"),  # plain http
        ({"hosts": ["localhost"], "allow_private": True}, "forbidden"),  # another host than the one asked
    ],
)
def test_the_rules_of_every_import_hold(serve: Serve, rules: dict[str, object], code: str) -> None:
    server = serve(imports=rules, **ADMIN)
    shop = ToolShop("mend")
    with over_http(shop) as url:
        answer = server.post("/v1/admin/import", url=url, format="mcp-server")
    assert (answer.json()["error"]["code"], shop.asked) == (code, 0)


def test_what_is_no_mcp_server_or_leads_elsewhere_is_refused(serve: Serve) -> None:
    server = serve(imports=LOCAL, **ADMIN)
    other = serve()
    for path in ("/healthz", "/nothing"):
        answer = server.post("/v1/admin/import", url=f"{other.url}{path}", format="mcp-server")
        assert (answer.status_code, answer.json()["error"]["code"]) == (422, "import_failed")
    with redirecting(f"{other.url}/mcp") as url:
        answer = server.post("/v1/admin/import", url=url, format="mcp-server")
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "import_failed")
    assert held(server, "toolrewrite") == set()


def test_a_followed_server_is_kept_in_step_and_may_go_away(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    shop = ToolShop("mend", "wash", "iron")
    with over_http(shop) as url:
        server = serve(imports=LOCAL, mcp=[{"name": "shop", "url": url, "poll_seconds": 0.2}])
        until(lambda: held(server) == {"shop/mend", "shop/wash", "shop/iron"})
        del shop.tools["wash"]
        shop.tools |= {"dye": "Dyes cloth.", "mend": "Mends socks with care."}
        until(lambda: held(server) == {"shop/mend", "shop/iron", "shop/dye"})
        until(lambda: server.search("socks", k=1)["results"][0]["tools"][0]["id"] == "shop/mend")
        shop.tools.clear()  # a server that has not finished starting lists nothing
        asked = shop.asked
        until(lambda: shop.asked >= asked + 3)  # the last but one saw nothing, and was dealt with
        assert len(held(server)) == 3
    caplog.clear()
    until(lambda: caplog.text.count("the catalogue keeps its tools") >= 2)  # the server is gone, and is tried again
    assert held(server) == {"shop/mend", "shop/iron", "shop/dye"}
    assert server.search("weather")["results"][0]["tools"]


def test_news_is_taken_up_without_waiting_for_the_next_look(serve: Serve) -> None:
    shop = ToolShop("mend")
    with over_http(shop) as url:
        server = serve(imports=LOCAL, mcp=[{"name": "shop", "url": url, "poll_seconds": 3600.0}])
        until(lambda: held(server) == {"shop/mend"})
        shop.tools["dye"] = "Dyes cloth."
        import anyio.from_thread

        with anyio.from_thread.start_blocking_portal() as portal:
            until(lambda: portal.call(shop.tell) or len(held(server)) == 2)  # once the subscription stands
        assert held(server) == {"shop/mend", "shop/dye"}


def test_a_command_is_followed_too(serve: Serve) -> None:
    command = [sys.executable, str(SUPPORT / "mcp_servers.py"), "mend", "wash"]
    server = serve(mcp=[{"name": "mine", "command": command}])
    until(lambda: bool(held(server, "mine")))
    assert held(server, "mine") == {"mine/mend", "mine/wash"}
    assert server.search("wash", k=1)["results"][0]["tools"][0]["id"] == "mine/wash"


def redirecting(target: str):  # type: ignore[no-untyped-def]
    """The URL of a server that sends everybody elsewhere."""
    import threading
    from contextlib import contextmanager
    from http.server import BaseHTTPRequestHandler, HTTPServer

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_response(307)
            self.send_header("Location", target)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    @contextmanager
    def running():  # type: ignore[no-untyped-def]
        server = HTTPServer(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/mcp"
        finally:
            server.shutdown()
            thread.join()
            server.server_close()

    return running()
