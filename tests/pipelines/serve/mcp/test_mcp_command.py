"""`rewrite-index mcp` writes the tools of a running MCP server to a file."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import pytest
from mcp_servers import ToolShop, over_http
from paths import SUPPORT

from pipelines.cli import main as cli
from retrievers.catalogue import read_catalogue

SHOP = shlex.join([sys.executable, str(SUPPORT / "mcp_servers.py")])


def test_all_pages_of_a_server_become_a_catalogue(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "tools.json"
    with over_http(ToolShop("mend", "wash", "iron", "fold", "dye")) as url:
        assert cli.index(["mcp", str(out), "--url", url]) == 0
    assert "5 tools of shop" in capsys.readouterr().out
    tools = read_catalogue(out)
    assert {tool.id for tool in tools} == {f"shop/{name}" for name in ("mend", "wash", "iron", "fold", "dye")}
    assert all(tool.parameters for tool in tools)


def test_a_command_is_asked_in_the_environment_of_the_shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_SELLS", "mend")  # as a key would be: the SDK itself hands over little more than PATH
    shell = f"sh -c {shlex.quote(SHOP + ' ${SHOP_SELLS:?}')}"
    assert cli.index(["mcp", str(tmp_path / "tools.json"), "--command", shell, "--name", "mine"]) == 0
    assert [tool.id for tool in read_catalogue(tmp_path / "tools.json")] == ["mine/mend"]


SLOPPY = """
import json, sys
lamp = {"name": "lamp", "inputSchema": {"type": "object"}}
for line in sys.stdin:
    request = json.loads(line)
    if request["method"] == "initialize":
        info = {"serverInfo": {"name": "sloppy", "version": "1"}, "capabilities": {"tools": {}}}
        answer = {"result": {**info, "protocolVersion": request["params"]["protocolVersion"]}}
    elif request["method"] == "tools/list":
        answer = {"result": {"tools": [{"name": "no schema"}, lamp, 7, {**lamp, "name": None}]}}
    else:
        answer = {"error": {"code": -32601, "message": "unknown"}}
    if "id" in request:
        print(json.dumps({"jsonrpc": "2.0", "id": request["id"], **answer}), flush=True)
"""


def test_a_wrong_tool_is_reported_and_the_others_written(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "sloppy.py").write_text(SLOPPY, "utf-8")
    command = shlex.join([sys.executable, str(tmp_path / "sloppy.py")])
    assert cli.index(["mcp", str(tmp_path / "tools.json"), "--command", command]) == 0
    assert [tool.id for tool in read_catalogue(tmp_path / "tools.json")] == ["sloppy/lamp"]
    assert [record.getMessage() for record in caplog.records if "skipped" in record.getMessage()] == [
        "skipped tool 1 of the server's page: inputSchema is not valid",
        "skipped tool 3 of the server's page: it is not valid",
        "skipped tool 4 of the server's page: name is not valid",
    ]


@pytest.mark.parametrize(
    ("words", "code", "naming"),
    [
        ([], 2, "--url"),
        (["--url", "http://127.0.0.1:9/mcp", "--command", "x"], 2, "--url"),
        (["--command", "no-such-command-here"], 2, "no-such-command-here"),
        (["--command", "'open"], 2, "--command"),
        (["--url", "nonsense"], 2, "--url"),
        (["--url", "http://127.0.0.1:9/mcp", "--key-variable", "NO_SUCH_KEY"], 2, "NO_SUCH_KEY"),
        (["--url", "http://127.0.0.1:9/mcp"], 1, "the server refuses the connection; is it running"),
        (["--command", "true"], 1, "is it running"),
        (["--command", SHOP], 1, "lists no tools"),
    ],
)
def test_what_cannot_be_asked_is_one_sentence_and_leaves_the_old_file(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], words: list[str], code: int, naming: str
) -> None:
    out = tmp_path / "tools.json"
    out.write_text(json.dumps({"tools": []}))
    assert cli.index(["mcp", str(out), *words]) == code
    told = capfd.readouterr().err
    assert naming in told
    assert "Traceback" not in told
    assert [path.name for path in tmp_path.iterdir()] == ["tools.json"]
    assert json.loads(out.read_text()) == {"tools": []}
