"""The notebook of docs/examples: its code runs in order, in an empty folder.

The cells are run here in one namespace, which needs neither Jupyter nor a kernel and starts at once.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from paths import ROOT

NOTEBOOK = ROOT / "docs/examples/sample.ipynb"


def test_the_notebook_trains_looks_and_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "__main__"}
    for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []  # figures of one machine do not belong in the repository
            exec(compile("".join(cell["source"]), cell["id"], "exec"), names)
    systems = names["evaluation"].summary()["systems"]
    assert systems["masstool"]["recall@5"] > systems["untrained"]["recall@5"] + 0.1
    assert names["result"].detection.needs_tool
    assert not names["thanks"].ranking
    assert names["answer"]["results"][0]["tools"][0]["id"] == names["result"].raw.ids[0]
    assert names["server"].returncode == 0
    assert "http://127.0.0.1:" in capsys.readouterr().out
