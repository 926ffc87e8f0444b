"""Time of a reranker per query, by number of candidates, beside the bare library with the same pairs.

A cross-encoder on PyTorch and on ONNX Runtime beside `CrossEncoder.predict`; a language model beside transformers
without shared prefixes and, where it is installed, in vLLM beside bare vLLM with the same prompts. All sides read the
same pairs in turn, in a random order each round; medians of milliseconds, and of the ratio per round.

python benchmarks/rerank_speed.py --data data/mcpzero --threads 2
python benchmarks/rerank_speed.py --data data/mcpzero --language-model Qwen/Qwen2.5-Coder-0.5B-Instruct
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pipelines.data.dataset import load_dataset
from pipelines.models import find_model
from pipelines.vllm_engine import vllm
from retrievers.dense.cpu.folder import read_folder
from retrievers.dense.cpu.graph import FORMS, build_graph
from retrievers.errors import ModelMissing
from retrievers.rerank.cross_encoder import CrossEncoderReranker
from retrievers.rerank.language_model import LanguageModelReranker
from retrievers.rerank.onnx_encoder import OnnxCrossEncoder
from retrievers.rerank.vllm_reranker import VllmReranker, whole_prompts
from retrievers.text import clean, document

BARE_ENCODER, BARE_VLLM = "CrossEncoder.predict", "bare vLLM"
PAUSE = 0.3
"""Seconds before each call: ONNX Runtime's threads wait in a loop for a while, and slow down what comes next."""
Ways = dict[str, Callable[[list[str], list[list[str]]], Any]]


@dataclass(frozen=True, slots=True)
class Texts:
    """Texts that all sides read."""

    queries: list[str]
    tools: list[str]


def cross_encoder(base: str, device: str | None, limits: tuple[int, int], texts: Texts) -> Ways:
    """Our cross-encoder and the library's own; an encoder without a head gets a new one. Cuts the texts for all."""
    model = CrossEncoderReranker(find_model(base), *limits, device)
    bare: Any = model._encoder
    texts.queries[:] = [model.cut(query, [])[0] for query in texts.queries]
    texts.tools[:] = model.cut("", texts.tools)[1]

    def predict(queries: list[str], documents: list[list[str]]) -> None:
        pairs = [(query, text) for query, texts in zip(queries, documents, strict=True) for text in texts]
        bare.predict(pairs, show_progress_bar=False)

    ways: Ways = {BARE_ENCODER: predict, "ours": model.score}
    if model.device == "cpu":
        with tempfile.TemporaryDirectory() as name:
            model.save(Path(name))
            folder = read_folder(Path(name), "cls")
            ways |= {
                f"ours, ONNX {form}": OnnxCrossEncoder(Path(name), build_graph(folder, form), folder, limits, "").score
                for form in FORMS
            }
    return ways


def language_model(base: str, device: str | None, limits: tuple[int, int], _: Texts) -> Ways:
    """Our language model with and without shared prefixes, and in vLLM."""
    model = LanguageModelReranker(find_model(base), *limits, device)

    def whole(queries: list[str], documents: list[list[str]]) -> None:
        pairs = [(query, text) for query, texts in zip(queries, documents, strict=True) for text in texts]
        with torch.inference_mode():
            model.logits(*zip(*pairs, strict=True)).cpu()

    ways: Ways = {"ours": model.score, "whole prompts": whole}
    try:
        served = VllmReranker(vllm(), find_model(base), None, *limits)
    except ModelMissing:
        return ways
    from vllm import SamplingParams

    yes, no = served.prompt.yes, served.prompt.no
    params = SamplingParams(max_tokens=1, temperature=0.0, logprob_token_ids=[yes, no], detokenize=False)

    def bare(queries: list[str], documents: list[list[str]]) -> None:
        prompts, _ = whole_prompts(served.prompt, queries, documents)
        served._vllm.llm.generate([{"prompt_token_ids": tokens} for tokens in prompts], params, use_tqdm=False)

    return {BARE_VLLM: bare, "ours in vLLM": served.score} | ways


def measure(ways: Ways, texts: Texts, sizes: Sequence[int], rounds: int) -> Any:
    """Medians per number of candidates: milliseconds, and speed as a share of the bare one; 0: 16 queries of 20."""
    rng, figures = np.random.default_rng(0), dict[str, dict[str, Any]]()
    for size in sizes:
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        for number in range(rounds + 1):
            batch, count = (1, size) if size else (16, 20)
            chosen = [texts.queries[i] for i in rng.integers(len(texts.queries), size=batch)]
            read = [[texts.tools[i] for i in rng.integers(len(texts.tools), size=count)] for _ in chosen]
            for name in rng.permutation(list(ways)).tolist():
                time.sleep(PAUSE)
                began = time.perf_counter()
                ways[name](chosen, read)
                if number:  # the first round warms up
                    seconds[name].append(time.perf_counter() - began)
        row: dict[str, Any] = {name: round(1000 * float(np.median(own)), 1) for name, own in seconds.items()}
        if bare := next((name for name in (BARE_ENCODER, BARE_VLLM) if name in ways), ""):
            row["speed"] = {
                name: round(float(np.median(np.array(seconds[bare]) / own)), 3) for name, own in seconds.items()
            }
        figures[str(size)] = row
        print(size, row, flush=True)
    return figures


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="bundled:sample", help="data set with tools and requests")
    parser.add_argument("--base", default="bundled:minilm", help="cross-encoder, or an encoder that gets a new head")
    parser.add_argument("--language-model", help="measure this language model in place of the cross-encoder")
    parser.add_argument("--threads", type=int, default=0, help="threads of torch (its own choice)")
    parser.add_argument("--max-length", type=int, default=256, help="tokens of a pair")
    parser.add_argument("--max-tool", type=int, default=64, help="tokens of a tool")
    parser.add_argument("--device")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--sizes", type=int, nargs="+", default=[5, 10, 20, 30, 0])
    parser.add_argument("--out", type=Path, help="JSON file to write")
    arguments = parser.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    data = load_dataset(arguments.data)
    texts = Texts(
        [query.text for query in data.queries.values()][:400], [clean(document(tool)) for tool in data.tools][:400]
    )
    make = language_model if arguments.language_model else cross_encoder
    limits = arguments.max_length, arguments.max_tool
    ways = make(arguments.language_model or arguments.base, arguments.device, limits, texts)
    figures = measure(ways, texts, arguments.sizes, arguments.rounds)
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps({"threads": arguments.threads, "milliseconds": figures}, indent=1))


if __name__ == "__main__":
    main()
