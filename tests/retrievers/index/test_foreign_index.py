"""Index folders from elsewhere: a manifest that names other files, arrays that are none, a disk that takes nothing."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import httpx
import numpy as np
import pytest
from doubles import BM25_ONLY, plain_context, varied_tools
from processes import CODE
from processes import served as served_process

from pipelines.cli import main as cli
from retrievers.errors import IndexBroken
from retrievers.index import Index, build
from retrievers.index import manifest as manifests

COMMAND = CODE.replace("serve", "index")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    build(tmp_path / "index", varied_tools(20), BM25_ONLY, plain_context())
    return tmp_path / "index"


def reseal(folder: Path, change: Callable[[dict[str, object]], None]) -> None:
    """Changes the manifest and seals it again, as the author of an index could."""
    facts = json.loads((folder / manifests.NAME).read_bytes())
    del facts["seal"]
    change(facts)
    body = json.dumps(facts, indent=1, sort_keys=True, ensure_ascii=False).encode()[:-2]
    seal = f',\n "seal": "{hashlib.sha256(body).hexdigest()}"\n}}\n'.encode()
    (folder / manifests.NAME).write_bytes(body + seal)


def entry(path: Path, name: str) -> dict[str, object]:
    data = path.read_bytes()
    return {"file": name, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


@pytest.mark.parametrize("name", ["../secret.jsonl", "{folder}/../secret.jsonl", "a/../../secret.jsonl", "."])
def test_a_resealed_manifest_names_no_file_outside(folder: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    secret = shutil.copy(next(folder.glob("tools-*.jsonl")), folder.parent / "secret.jsonl")
    named = entry(Path(secret), name.format(folder=folder))
    reseal(folder, lambda facts: facts["segments"][0].update(tools=named))  # type: ignore[index]
    with pytest.raises(IndexBroken, match="outside of the index"):
        Index(folder, plain_context())
    for command in (["search", str(folder), "weather"], ["verify", str(folder)], ["info", str(folder)]):
        assert cli.index(command) == 2
        assert "outside of the index; build the index again" in capsys.readouterr().err


def test_a_model_outside_and_a_link_are_refused(folder: Path) -> None:
    tools = next(folder.glob("tools-*.jsonl"))
    tools.rename(folder.parent / "secret.jsonl")
    tools.symlink_to(folder.parent / "secret.jsonl")
    with pytest.raises(IndexBroken, match="is a link out of the index"):
        Index(folder, plain_context())
    reseal(folder, lambda facts: facts["retrievers"]["bm25"].update(model="../model"))  # type: ignore[index]
    with pytest.raises(IndexBroken, match="a model outside of the index"):
        manifests.read(folder)


@pytest.mark.parametrize("array", [np.array([{"a": 1}], dtype=object), np.array(["text"])], ids=["objects", "texts"])
def test_an_array_of_objects_with_the_right_hash_is_one_sentence(
    folder: Path, array: np.ndarray, capsys: pytest.CaptureFixture[str]
) -> None:
    foreign = folder / "foreign-0000000000000000.npy"
    np.save(foreign, array, allow_pickle=True)

    def change(facts: dict[str, object]) -> None:
        arrays = facts["segments"][0]["arrays"]["bm25"]  # type: ignore[index]
        arrays[next(iter(arrays))] = entry(foreign, foreign.name)

    reseal(folder, change)
    for command in (["search", str(folder), "weather"], ["verify", str(folder)]):
        assert cli.index(command) in (1, 2)
        printed = capsys.readouterr().err
        assert f"{foreign} is not an array of numbers; build the index again" in printed
        assert "Traceback" not in printed


def read_only(folder: Path) -> Sequence[str]:
    """Words before a command for which the folder cannot be written: a real read-only mount for root."""
    if os.geteuid():
        folder.chmod(0o555)
        return ()
    mount = f"mount --bind {folder} {folder} && mount -o remount,ro,bind {folder}"
    if shutil.which("unshare") is None or subprocess.run(["unshare", "-m", "sh", "-c", mount]).returncode:
        pytest.skip("this machine allows no mounts")
    return ("unshare", "-m", "sh", "-c", f'{mount} && exec "$0" "$@"')


def test_a_read_only_disk_is_one_sentence(folder: Path, tmp_path: Path) -> None:
    words = read_only(folder)
    with served_process(tmp_path, {"index": str(folder), "anonymous": ["search", "write"]}, words) as (_, url):
        answer = httpx.put(f"{url}/v1/tools/adder", json={"name": "adder", "description": "Adds umbrellas."})
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "read_only")
        assert str(folder) not in answer.text
        assert httpx.delete(f"{url}/v1/tools/{varied_tools(1)[0].id}").status_code == 503
        assert httpx.post(f"{url}/v1/search", json={"utterance": "weather"}).status_code == 200
    (tmp_path / "more.jsonl").write_text(json.dumps({"_id": "adder", "title": "adder", "text": "Adds umbrellas."}))
    command = [*words, sys.executable, "-c", COMMAND, "add", str(folder), str(tmp_path / "more.jsonl")]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert (ended.returncode, "Traceback" in ended.stderr) == (2, False)
    assert f"{folder} cannot be written (" in ended.stderr
