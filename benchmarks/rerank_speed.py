"""Time of a reranker per query, by number of candidates, beside the bare library with the same pairs.

A cross-encoder beside `CrossEncoder.predict`; a language model beside transformers without shared prefixes and, where
it is installed, beside bare vLLM with the same prompts. Both sides are interleaved; medians.

python benchmarks/rerank_speed.py --data data/mcpzero --threads 2
python benchmarks/rerank_speed.py --data data/mcpzero --language-model Qwen/Qwen2.5-Coder-0.5B-Instruct
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pipelines.data.dataset import load_dataset
from pipelines.models import find_model
from pipelines.vllm_engine import vllm
from retrievers.errors import ModelMissing
from retrievers.rerank.cross_encoder import CrossEncoderReranker
from retrievers.rerank.language_model import LanguageModelReranker
from retrievers.rerank.vllm_reranker import VllmReranker, whole_prompts
from retrievers.text import clean, document

Ways = dict[str, Callable[[list[str], list[list[str]]], Any]]


def cross_encoder(base: str, device: str | None) -> Ways:
    """Our cross-encoder and the library's own."""
    model = CrossEncoderReranker(find_model(base), 512, 128, device)
    bare: Any = model._encoder

    def predict(queries: list[str], documents: list[list[str]]) -> None:
        pairs = [(query, text) for query, texts in zip(queries, documents, strict=True) for text in texts]
        bare.predict(pairs, show_progress_bar=False)

    return {"ours": model.score, "CrossEncoder.predict": predict}


def language_model(base: str, device: str | None) -> Ways:
    """Our language model with and without shared prefixes, and in vLLM."""
    model = LanguageModelReranker(find_model(base), 1024, 192, device)

    def whole(queries: list[str], documents: list[list[str]]) -> None:
        pairs = [(query, text) for query, texts in zip(queries, documents, strict=True) for text in texts]
        with torch.inference_mode():
            model.logits(*zip(*pairs, strict=True)).cpu()

    ways: Ways = {"ours": model.score, "whole prompts": whole}
    try:
        served = VllmReranker(vllm(), find_model(base), None, 1024, 192)
    except ModelMissing:
        return ways
    from vllm import SamplingParams

    yes, no = served.prompt.yes, served.prompt.no
    params = SamplingParams(max_tokens=1, temperature=0.0, logprob_token_ids=[yes, no], detokenize=False)

    def bare(queries: list[str], documents: list[list[str]]) -> None:
        prompts, _ = whole_prompts(served.prompt, queries, documents)
        served._vllm.llm.generate([{"prompt_token_ids": tokens} for tokens in prompts], params, use_tqdm=False)

    return ways | {"ours in vLLM": served.score, "bare vLLM": bare}


def measure(ways: Ways, queries: Sequence[str], tools: Sequence[str], sizes: Sequence[int], rounds: int) -> Any:
    """Median milliseconds per way and number of candidates; 0 stands for 16 queries of 20 at once."""
    rng, figures = np.random.default_rng(0), dict[str, dict[str, float]]()
    for size in sizes:
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        for number in range(rounds + 1):
            batch, count = (1, size) if size else (16, 20)
            chosen = [queries[i] for i in rng.integers(len(queries), size=batch)]
            read = [[tools[i] for i in rng.integers(len(tools), size=count)] for _ in chosen]
            for name, way in ways.items():
                began = time.perf_counter()
                way(chosen, read)
                if number:  # the first round warms up
                    seconds[name].append(time.perf_counter() - began)
        figures[str(size)] = {name: round(1000 * float(np.median(own)), 1) for name, own in seconds.items()}
        print(size, figures[str(size)], flush=True)
    return figures


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="bundled:sample", help="data set with tools and requests")
    parser.add_argument("--base", default="bundled:minilm", help="cross-encoder, or an encoder that gets a new head")
    parser.add_argument("--language-model", help="measure this language model in place of the cross-encoder")
    parser.add_argument("--threads", type=int, default=0, help="threads of torch (its own choice)")
    parser.add_argument("--device")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--sizes", type=int, nargs="+", default=[5, 10, 20, 30, 0])
    parser.add_argument("--out", type=Path, help="JSON file to write")
    arguments = parser.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    data = load_dataset(arguments.data)
    tools = [clean(document(tool)) for tool in data.tools][:400]
    queries = [query.text for query in data.queries.values()][:400]
    make = language_model if arguments.language_model else cross_encoder
    ways = make(arguments.language_model or arguments.base, arguments.device)
    figures = measure(ways, queries, tools, arguments.sizes, arguments.rounds)
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps({"threads": arguments.threads, "milliseconds": figures}, indent=1))


if __name__ == "__main__":
    main()
