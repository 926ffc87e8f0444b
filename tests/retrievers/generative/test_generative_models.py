"""Language models of other makes: a search asks for what they say, and what training must not touch stays."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from generative_toys import DATA, TOOLS, TRAINING, save_toy_model, toolgen

from retrievers.generative.decoding.language_model import LanguageModel, extend_vocabulary, load_model
from retrievers.generative.decoding.local_model import ExtendedVocabulary, LocalDecoder
from retrievers.generative.settings import Stage
from retrievers.generative.training import loop
from retrievers.kind import Context
from retrievers.registry import make_kind
from retrievers.text import document

SIZES: dict[str, dict[str, Any]] = {
    "gemma3_text": {"head_dim": 16, "sliding_window": 64, "tie_word_embeddings": True},  # reads rows times 8
    "phi": {},  # its head has a bias
    "gpt2": {"n_embd": 64, "n_layer": 2, "n_head": 2, "tie_word_embeddings": True},  # its rows are called wte
}


@pytest.fixture(scope="module")
def makes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    place = tmp_path_factory.mktemp("makes")
    tokenizer, found = AutoTokenizer.from_pretrained(save_toy_model(place / "llama")), {}
    for make, more in SIZES.items():
        shape = {
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
        }
        ends = {name: tokenizer.eos_token_id for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
        config = AutoConfig.for_model(
            make, vocab_size=len(tokenizer), initializer_range=0.15, **({} if make == "gpt2" else shape), **more, **ends
        )
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config)
        if model.get_output_embeddings().bias is not None:
            torch.nn.init.normal_(model.get_output_embeddings().bias)
        model.save_pretrained(place / make)
        tokenizer.save_pretrained(place / make)
        found[make] = place / make
    return found


@pytest.mark.parametrize("make", SIZES)
@pytest.mark.parametrize("late", [0, 3])
def test_a_search_asks_for_what_the_model_says(make: str, late: int, makes: dict[str, Path]) -> None:
    language = LanguageModel(makes[make], "cpu")
    rows = np.random.default_rng(0).normal(size=(late, language.hidden_size)).astype(np.float32) * 0.3
    whole = load_model(makes[make]).eval()  # the same with the late rows grown on
    extend_vocabulary(whole, rows, rows)
    prompts = [[5, 9, 12, 40], [7, 8, 33, 51]]
    run = LocalDecoder(ExtendedVocabulary(language, rows, rows), prompts, True)
    every = np.arange(language.vocab_size + late)

    def asked() -> np.ndarray:
        return run.log_probs(np.array([0, len(every), 2 * len(every)]), np.tile(every, 2), 5).reshape(2, -1)

    def says(tokens: list[list[int]]) -> np.ndarray:
        with torch.no_grad():
            found: np.ndarray = whole(torch.tensor(tokens)).logits[:, -1].double().log_softmax(dim=-1).numpy()
        return found

    np.testing.assert_allclose(asked(), says(prompts), atol=2e-4)
    assert (
        run.likeliest(language.vocab_size).tolist() == says(prompts)[:, : language.vocab_size].argmax(axis=1).tolist()
    )
    said = [language.vocab_size + late - 1, 17]
    run.advance(np.arange(2), np.array(said))
    np.testing.assert_allclose(asked(), says([[*p, s] for p, s in zip(prompts, said, strict=True)]), atol=2e-4)


def test_adapters_leave_every_old_row_as_it_was_whatever_the_model_calls_it(
    makes: dict[str, Path], context: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "WEIGHT_DECAY", 1.0)
    training = replace(
        TRAINING,
        method="lora",
        lora_rank=4,
        memorise=Stage(0),
        retrieve=Stage(1, 1e-2, 16),
    )
    kind: Any = make_kind(toolgen(makes["gpt2"], training), context)
    folder = kind.train_tools(TOOLS, [document(tool) for tool in TOOLS], [DATA], tmp_path / "work")
    before, after = (load_model(each).get_input_embeddings().weight for each in (makes["gpt2"], folder))
    assert len(after) == len(before) + 8
    assert torch.equal(after[: len(before)], before)
