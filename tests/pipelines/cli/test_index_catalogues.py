"""`rewrite-index` with catalogues of many files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from pipelines import config as configs
from pipelines.cli import main as cli
from pipelines.context import make_context
from pipelines.index.build import IndexConfig
from pipelines.index.defaults import default_retrievers
from retrievers.index import Index


def write_api(path: Path, server: str, version: str = "1.0.0", summary: str = "List pets") -> Path:
    document = {
        "openapi": "3.1.0",
        "info": {"title": "Pets", "version": version},
        "servers": [{"url": server}],
        "paths": {"/pets": {"get": {"operationId": "list", "summary": summary}}},
    }
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(document), "utf-8")
    return path


def write_config(folder: Path, catalogue: str, more: str = "") -> Path:
    config = folder / "index.yaml"
    config.write_text(f"index: {folder}/index\ncatalogue: [{catalogue}]\nretrievers: {{bm25: {{kind: bm25}}}}\n{more}")
    return config


def ids(folder: Path) -> list[str]:
    return sorted(Index(folder / "index", make_context()).tools)


def test_build_takes_a_folder_and_names_what_it_skips(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_api(tmp_path / "apis" / "v1.json", "https://pets.example/v1")
    write_api(tmp_path / "apis" / "v2.json", "https://pets.example/v2", "2.0.0")
    (tmp_path / "apis" / "broken.yaml").write_text("openapi: 3.0.0\ninfo: [", "utf-8")
    assert cli.index(["build", str(write_config(tmp_path, f"{tmp_path}/apis"))]) == 0
    assert ids(tmp_path) == ["pets-v2/list", "pets/list"]
    printed = capsys.readouterr()
    assert "2 tools" in printed.out
    first, second = [line for line in printed.err.splitlines() if line.startswith(("skipped: ", str(tmp_path)))]
    assert first.startswith(f"{tmp_path}/apis/v2.json: 1 of its ids are taken by {tmp_path}/apis/v1.json")
    assert second.startswith(f"skipped: {tmp_path}/apis/broken.yaml, line 2")


def test_a_config_names_providers(tmp_path: Path) -> None:
    second = write_api(tmp_path / "apis" / "b.json", "https://two.example")
    write_api(tmp_path / "apis" / "a.json", "https://one.example")
    config = write_config(tmp_path, f"'{tmp_path}/apis/*.json'", f"providers: {{{second}: Other pets}}\n")
    assert cli.index(["build", str(config)]) == 0
    assert ids(tmp_path) == ["other-pets/list", "pets/list"]


def test_add_takes_over_no_id_in_silence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = write_api(tmp_path / "apis" / "v1.json", "https://pets.example/v1")
    second = write_api(tmp_path / "apis" / "v2.json", "https://pets.example/v2", "2.0.0")
    index = str(tmp_path / "index")
    assert cli.index(["build", str(write_config(tmp_path, str(first)))]) == 0
    capsys.readouterr()
    assert cli.index(["add", index, str(second)]) == 2
    error = capsys.readouterr().err
    assert "(GET https://pets.example/v1/pets of version 1.0.0, now GET https://pets.example/v2/pets of" in error
    assert "keep both with --provider 'Pets v2', or replace the old ones with --replace" in error
    assert cli.index(["add", index, str(second), "--provider", "Pets v2"]) == 0
    assert ids(tmp_path) == ["pets-v2/list", "pets/list"]
    capsys.readouterr()
    write_api(first, "https://pets.example/v1", "1.1.0", "List all pets")
    assert cli.index(["add", index, str(first)]) == 0  # the same operation, described anew
    assert capsys.readouterr().err == "replaced: pets/list\n"
    assert cli.index(["add", index, str(second), "--replace"]) == 0
    assert ids(tmp_path) == ["pets-v2/list", "pets/list"]


def test_lint_takes_several_catalogues(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = write_api(tmp_path / "apis" / "a.json", "https://one.example")
    second = write_api(tmp_path / "apis" / "b.json", "https://two.example", "2")
    assert cli.index(["lint", str(first), str(second)]) == 0
    assert "2 tools," in capsys.readouterr().out
    assert cli.index(["lint", f"{tmp_path}/apis/*.txt"]) == 2
    assert "matches no file" in capsys.readouterr().err


def test_providers_of_single_catalogues_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = tmp_path / "a.json", tmp_path / "b.json"
    for path in (first, second):
        path.write_text('{"tools": [{"name": "search", "description": "Search pets.", "inputSchema": {}}]}', "utf-8")
    both = [str(first), str(second)]
    assert cli.index(["lint", *both]) == 2
    assert "name the provider of one (`providers` in a config, --provider FILE=NAME," in capsys.readouterr().err
    assert cli.index(["lint", *both, "--provider", f"{second}=dogs", "--provider", "cats"]) == 0
    assert cli.index(["build", str(write_config(tmp_path, str(first)))]) == 0
    assert cli.index(["add", str(tmp_path / "index"), *both, "--provider", f"{second}=dogs"]) == 0
    assert ids(tmp_path) == ["dogs/search", "search"]
    capsys.readouterr()
    for wrong, why in (("c.json=dogs", "no catalogue is called 'c.json'"), ("b.json=", "names no provider")):
        assert cli.index(["lint", *both, "--provider", wrong]) == 2
        assert why in capsys.readouterr().err


@pytest.mark.parametrize("name", ["pets.json", "pets.yaml"])
def test_build_takes_a_catalogue_in_place_of_a_config(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    path = write_api(tmp_path / "apis" / name, "https://pets.example/v1")
    if name.endswith("yaml"):
        path.write_text(yaml.safe_dump(json.loads(path.read_text("utf-8"))), "utf-8")
    monkeypatch.chdir(tmp_path)
    assert cli.index(["build", str(path), "--set", "retrievers={bm25: {kind: bm25}}"]) == 0
    assert list(Index(tmp_path / "runs/index", make_context()).tools) == ["pets/list"]
    assert "runs/index: 1 tools, bm25" in capsys.readouterr().out


def test_build_without_a_config_makes_the_recommended_retrievers(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.index(["build", "--dry-run"]) == 0
    config = yaml.safe_load(capsys.readouterr().out)
    written_out = configs.load(Path("configs/index/tutorial.yaml"), IndexConfig)
    assert config["catalogue"] == ["bundled:sample"]
    assert default_retrievers() == written_out.retrievers
    assert list(config["retrievers"]) == list(written_out.retrievers)
    assert config["retrievers"]["hybrid"]["other_languages"] == ["multilingual"]


def test_what_is_neither_config_nor_catalogue_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.index(["build", str(tmp_path / "none.json")]) == 2
    assert "none.json does not exist" in capsys.readouterr().err
    (tmp_path / "list.yaml").write_text("tools: [a, b]\n", "utf-8")
    assert cli.index(["build", str(tmp_path / "list.yaml")]) == 2
    assert "list.yaml:1: unknown key tools" in capsys.readouterr().err
