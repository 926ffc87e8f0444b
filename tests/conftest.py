"""What all tests share: no hub, no user's cache, one thread a test."""

from __future__ import annotations

import os
import sys

os.environ.update(HF_HUB_OFFLINE="1", OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", TOKENIZERS_PARALLELISM="false")

import fcntl
import gc
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from pipelines.context import make_context
from pipelines.data.sample_data import sample_folder
from pipelines.models import find_model
from retrievers.catalogue import read_catalogue
from retrievers.kind import Context
from retrievers.types import Tool

ROOT = Path(__file__).parent.parent
# Processes that tests start import the repository and the tests' support modules, wherever they run.
os.environ["PYTHONPATH"] = os.pathsep.join(
    (str(ROOT), str(ROOT / "tests" / "support"), os.environ.get("PYTHONPATH", ""))
)

settings.register_profile("here", deadline=None)  # how long an example takes is the machine's affair
settings.load_profile("here")

SLOW = (
    "pipelines/serve/rewriter/test_vllm_process.py",
    "retrievers/index/test_index_survives.py",
    "retrievers/dense/test_tuning.py",
    "rewrite/backends/test_vllm_engine.py",
    "pipelines/batch/test_ray.py",
    "pipelines/train/test_sft_survives.py",
    "rewrite/align/test_align.py",
    "pipelines/renew/test_renew.py",
    "pipelines/batch/test_batch_survives.py",
    "pipelines/train/test_two_processes.py",
    "rewrite/backends/test_in_process.py",
    "retrievers/masstool/test_joint_training.py",
    "pipelines/cli/test_align_commands.py",
)
"""Files that take most of a minute or more. They go first, so that no process is left alone with one at the end; the
Makefile tells pytest-xdist to keep the order. The first converts the language model, which the next two do not need."""

TOKENS = 8192
"""What the tiny language models know."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Slow files first, the others as they come."""
    here = Path(__file__).parent
    assert [name for name in SLOW if not (here / name).is_file()] == [], "SLOW names files that are not there"
    places = {str(here / name): place for place, name in enumerate(SLOW)}
    items.sort(key=lambda item: places.get(str(item.path), len(SLOW)))


def pytest_collection_finish() -> None:
    """What is loaded stays: collections of garbage, of which every training asks for one, pass it by."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish() -> None:
    """Libraries complain of what is left at the end."""
    gc.unfreeze()


@pytest.fixture(scope="session")
def converted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where converted models are: one place for all processes of pytest-xdist."""
    own = tmp_path_factory.getbasetemp()
    folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "models"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, converted: Path) -> Path:
    """A cache of the tests' own; vectors computed by one test serve the others."""
    folder = tmp_path_factory.mktemp("cache")
    (folder / "models").symlink_to(converted)
    os.environ["TOOLREWRITE_CACHE"] = str(folder)
    return folder


@pytest.fixture(autouse=True)
def same_arithmetic() -> Iterator[None]:
    """On a CPU without bfloat16, torch's first bfloat16 product turns oneDNN off for the whole process.

    What trains after it would differ in the last bits from the same training in a process of its own.
    """
    yield
    if "torch" in sys.modules:
        import torch

        torch.backends.mkldnn.set_flags(torch.backends.mkldnn.is_available())


@pytest.fixture(scope="session")
def context(cache: Path) -> Context:
    return make_context("cpu")


@pytest.fixture(scope="session")
def sample_tools() -> list[Tool]:
    return read_catalogue(sample_folder())


@pytest.fixture(scope="session")
def some_tools(sample_tools: list[Tool]) -> list[Tool]:
    """A few tools of every provider: small enough to embed in a moment."""
    return sample_tools[::4]


@pytest.fixture(scope="session")
def language_model(cache: Path, converted: Path) -> Path:
    """The bundled language model, converted once for all tests."""
    with converted.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return find_model("bundled:smollm2-135m")


@pytest.fixture(scope="session")
def tiny_lm(language_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A language model of two small layers and the bundled one's commonest tokens: untrained, and done in a moment."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig

    folder = tmp_path_factory.mktemp("models") / "tiny-lm"
    AutoTokenizer.from_pretrained(language_model).save_pretrained(folder)
    _cut(folder / "tokenizer.json")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


def _cut(tokenizer: Path) -> None:
    """Leaves the first tokens of a BPE, numbered in the order of its merges.

    The scores of all 49,152 take a tiny model longer than its layers do.
    """
    facts = json.loads(tokenizer.read_text(encoding="utf-8"))
    model = facts["model"]
    model["vocab"] = {token: number for token, number in model["vocab"].items() if number < TOKENS}
    model["merges"] = [pair for pair in model["merges"] if "".join(pair) in model["vocab"]]
    tokenizer.write_text(json.dumps(facts), encoding="utf-8")


@pytest.fixture(scope="session")
def untied_lm(tiny_lm: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model with a head of its own: it answers with more than one word, and differently when trained."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig

    folder = tmp_path_factory.mktemp("models") / "untied"
    config = LlamaConfig.from_pretrained(tiny_lm)
    config.tie_word_embeddings = False
    torch.manual_seed(1)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    AutoTokenizer.from_pretrained(tiny_lm).save_pretrained(folder)
    return folder
