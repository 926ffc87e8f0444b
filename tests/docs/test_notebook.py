"""The notebook of docs/examples: it has the form of a notebook, and its code runs in order, in an empty folder.

The cells are run here in one namespace, which needs neither Jupyter nor a kernel and starts at once.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from paths import ROOT

NOTEBOOK = ROOT / "docs/examples/sample.ipynb"
KEYS = {
    "markdown": {"cell_type", "id", "metadata", "source"},
    "code": {"cell_type", "id", "metadata", "source", "execution_count", "outputs"},
}
"""Keys of a cell in the notebook format 4.5: all of them are required, and no other is allowed here."""


def test_the_notebook_has_the_form_that_jupyter_reads() -> None:
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    assert set(notebook) == {"cells", "metadata", "nbformat", "nbformat_minor"}
    assert {"name", "display_name"} <= set(notebook["metadata"]["kernelspec"])
    cells = notebook["cells"]
    assert all(set(cell) == KEYS[cell["cell_type"]] and cell["metadata"] == {} for cell in cells)
    assert all(re.fullmatch(r"[\w-]{1,64}", cell["id"]) for cell in cells)
    assert len({cell["id"] for cell in cells}) == len(cells)
    for cell in cells:
        assert all(isinstance(line, str) for line in cell["source"])
        assert all(line.endswith("\n") for line in cell["source"][:-1]), "lines would be joined"
        assert cell.get("execution_count") is None
        assert cell.get("outputs", []) == []  # figures of one machine do not belong in the repository


def test_the_notebook_trains_looks_and_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "__main__"}
    for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), cell["id"], "exec"), names)
    systems = names["evaluation"].summary()["systems"]
    assert systems["masstool"]["recall@5"] > systems["untrained"]["recall@5"] + 0.1
    assert names["result"].detection.needs_tool
    assert not names["thanks"].ranking
    assert names["answer"]["results"][0]["tools"][0]["id"] == names["result"].raw.ids[0]
    assert names["server"].returncode == 0
    assert "http://127.0.0.1:" in capsys.readouterr().out
