"""The default config: the index that ships, and the recommended retriever."""

from __future__ import annotations

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from paths import ROOT
from serving import running

from pipelines import config as configs
from pipelines.cli import main as cli
from pipelines.cli.flags import DEFAULT_SERVER
from pipelines.data.dataset import load_dataset
from pipelines.data.sample_data import sample_folder
from pipelines.index.build import IndexConfig
from pipelines.index.defaults import best_retriever, index_folder
from pipelines.serve.settings import ServeConfig
from retrievers.index import manifest as manifests
from retrievers.index import verify
from retrievers.registry import settings_to_json
from retrievers.types import Tool

SHIPPED = sample_folder() / "index"


def test_the_index_that_ships_is_whole_and_small_and_of_its_config(sample_tools: list[Tool]) -> None:
    manifest, _ = manifests.read(SHIPPED)
    assert not verify(SHIPPED)
    assert manifest.live() == len(sample_tools)
    config = configs.load(ROOT / "configs/index/sample.yaml", IndexConfig, ["retrievers.masstool.train.folds=0"])
    made = {name: part.settings for name, part in manifest.retrievers.items()}
    wished = {name: settings_to_json(each) for name, each in config.retrievers.items()}
    assert made == json.loads(json.dumps(wished))
    assert sum(path.stat().st_size for path in SHIPPED.rglob("*")) < 15_000_000
    wanted = manifest.files() | {manifests.NAME}
    assert {path.name for path in SHIPPED.iterdir()} == wanted


def test_a_server_that_is_told_nothing_serves_the_sample(sample_tools: list[Tool]) -> None:
    config = yaml.safe_load(DEFAULT_SERVER.read_text())
    before = (SHIPPED / manifests.NAME).read_bytes()
    with running(config) as server:
        assert server.gateway.catalogue.retriever == "masstool"
        found = server.search("will I need a coat in Oslo tonight", k=5)["results"][0]
        assert found["detection"]["threshold"] == 0.5
        assert any("weather" in tool["id"] or "forecast" in tool["id"].lower() for tool in found["tools"])
        assert server.client.get("/v1/models").json()["models"][0]["id"] == "masstool"
        *examples, thanks = server.client.get("/v1/about").json()["examples"]
        data = load_dataset("bundled:sample")
        gold = {data.queries[query].text: tools for query, tools in data.split("test").items()}
        for text, result in zip(examples, server.search(examples, k=3)["results"], strict=True):
            assert gold[text] <= {tool["id"] for tool in result["tools"]}, text
        assert not server.search(thanks)["results"][0]["detection"]["needs_tool"]
        tool = {"name": "brew", "description": "Starts the kettle for a pot of tea."}
        assert server.client.put("/v1/tools/tea%2Fbrew", json=tool).status_code == 200
        assert "tea/brew" in [
            each["id"] for each in server.search("start the kettle", detect="off")["results"][0]["tools"]
        ]
        assert server.client.delete("/v1/tools/tea%2Fbrew").status_code == 200
    assert (SHIPPED / manifests.NAME).read_bytes() == before  # the server works on a copy


def test_servers_that_start_together_share_one_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOOLREWRITE_CACHE", str(tmp_path))
    with ThreadPoolExecutor(8) as pool:
        found = set(pool.map(lambda _: index_folder("bundled:sample"), range(8)))
    assert len(found) == 1
    assert not verify(found.pop())
    assert len(list((tmp_path / "indexes").iterdir())) == 1


@pytest.mark.parametrize(
    ("having", "best"),
    [
        (("bm25",), "bm25"),
        (("bm25", "dense"), "dense"),
        (("bm25", "dense", "hybrid"), "hybrid"),
        (("bm25", "dense", "hybrid", "tuned"), "tuned"),
        (("bm25", "dense", "hybrid", "tuned", "masstool"), "masstool"),
        (("bm25", "untrained"), "bm25"),
        (("toolgen", "bm25"), "bm25"),
        (("toolgen",), "toolgen"),
    ],
)
def test_the_best_retriever_of_an_index(having: tuple[str, ...], best: str) -> None:
    manifest, _ = manifests.read(SHIPPED)
    parts = dict(manifest.retrievers)
    parts["tuned"] = replace(parts["dense"], settings={**parts["dense"].settings, "train": {"epochs": 1}})
    parts["untrained"] = replace(parts["masstool"], settings={**parts["masstool"].settings, "train": None})
    parts["toolgen"] = replace(parts["dense"], settings={"kind": "toolgen", "train": {}})
    index = SimpleNamespace(manifest=replace(manifest, retrievers={name: parts[name] for name in having}))
    assert best_retriever(index) == best  # type: ignore[arg-type]


def test_what_it_learned_cannot_tell_how_good_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = {
        "output": f"{tmp_path}/run",
        "data": "bundled:sample",
        "index": str(SHIPPED),
        "split": "train",
        "systems": {"masstool": {"retriever": "masstool"}},
    }
    (tmp_path / "eval.yaml").write_text(yaml.safe_dump(config))
    assert cli.evaluate([str(tmp_path / "eval.yaml")]) == 2
    assert "was trained on the train queries of sample" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_one_may_say_which_index_all_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.serve(["--dry-run"]) == 0
    assert configs.parse(ServeConfig, yaml.safe_load(capsys.readouterr().out)).index == "bundled:sample"
    assert cli.serve(["--set", f"index={tmp_path}/mine", "--dry-run"]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["index"] == f"{tmp_path}/mine"
    assert cli.serve(["--set", f"index={tmp_path}/mine"]) == 2
    assert "no finished index" in capsys.readouterr().err


def test_the_threshold_that_the_samples_dev_chose_is_the_samples_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = shutil.copytree(SHIPPED, tmp_path / "mine")
    assert cli.serve(["--set", f"index={own}", "--dry-run"]) == 0
    config = yaml.safe_load(capsys.readouterr().out)
    assert config["detection_threshold"] is None
    [facts] = own.glob("masstool-model-*/training.json")
    chosen = json.loads(facts.read_text())["detection"]["threshold"]
    for said, threshold in ((None, chosen), (0.25, 0.25)):
        with running(config | {"port": 0, "detection_threshold": said}) as server:
            found = server.search("will I need a coat in Oslo tonight", k=5)["results"][0]
            assert found["detection"]["threshold"] == pytest.approx(threshold)
    assert chosen != pytest.approx(0.4)


@pytest.mark.parametrize("harm", ["no manifest", "half a manifest", "a file"])
def test_a_damaged_copy_is_put_aside_and_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, harm: str
) -> None:
    monkeypatch.setenv("TOOLREWRITE_CACHE", str(tmp_path))
    copy = index_folder("bundled:sample")
    manifest = copy / manifests.NAME
    if harm == "a file":
        shutil.rmtree(copy)
        copy.write_text("not a folder")
    elif harm == "no manifest":
        manifest.unlink()
    else:
        manifest.write_bytes(manifest.read_bytes()[:100])
    assert index_folder("bundled:sample") == copy
    assert not verify(copy)
    [aside] = [path for path in copy.parent.iterdir() if ".damaged-" in path.name]
    assert str(aside) in caplog.text
    assert index_folder("bundled:sample") == copy
    assert {path.name for path in copy.parent.iterdir()} == {copy.name, aside.name}
