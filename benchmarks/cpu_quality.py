"""Measure the loss of an encoder on a CPU: R@5 of float32 and int8 vectors on test queries, and of mixed indexes.

    python benchmarks/cpu_quality.py DATA ... [--model bundled:tools] [--queries 600] [--out FILE]

DATA are data set folders. `float32` is ONNX Runtime's; its cosine with PyTorch's is printed for some texts.
"""

from __future__ import annotations

import random
import sys
from typing import Any

import numpy as np
from harness import make_parser, write_json

from pipelines.data.dataset import load_dataset
from pipelines.models import cache_folder, find_model
from retrievers.dense.cpu.model import load_cpu_model
from retrievers.dense.encoder import fingerprint
from retrievers.dense.model_loading import load_model
from retrievers.text import clean, document

K = 5
CHECKED = 48  # texts that PyTorch embeds too


def measure(reference: str, models: dict[str, Any], limit: int) -> dict[str, float]:
    """Recall by the forms of the documents' and the queries' vectors."""
    data = load_dataset(reference)
    gold = data.split("test")
    chosen = random.Random(0).sample(sorted(gold), min(limit, len(gold)))
    documents = [clean(document(tool)) for tool in data.tools]
    queries = [clean(data.queries[query].text) for query in chosen]
    ids = np.array([tool.id for tool in data.tools])
    tools = {form: model.encode_document(documents) for form, model in models.items()}
    requests = {form: model.encode_query(queries) for form, model in models.items()}
    facts = {"tools": len(ids), "queries": len(queries)}
    for left in models:
        for right in models:
            best = ids[np.argsort(-(requests[right] @ tools[left].T), axis=1, kind="stable")[:, :K]]
            scores = [len(gold[query] & set(row)) / len(gold[query]) for query, row in zip(chosen, best, strict=True)]
            facts[f"R@{K}, {left} tools, {right} queries"] = float(np.mean(scores))
    facts["mean cosine, queries"] = float((requests["float32"] * requests["int8"]).sum(axis=1).mean())
    facts["mean cosine, tools"] = float((tools["float32"] * tools["int8"]).sum(axis=1).mean())
    return facts


def main() -> int:
    """Measure every data set."""
    parser = make_parser(__doc__)
    parser.add_argument("data", nargs="+", help="data set folders")
    parser.add_argument("--model", default="bundled:tools")
    parser.add_argument("--queries", type=int, default=600, help="test queries per data set at most")
    options = parser.parse_args()
    folder = find_model(options.model)
    names = {"float32": "float32", "int8": "auto"}
    models = {form: load_cpu_model(folder, fingerprint(folder), cache_folder(), name) for form, name in names.items()}
    texts = [clean(query.text) for query in load_dataset(options.data[0]).queries.values()][:CHECKED]
    exact = load_model(folder, "cpu").encode(texts, normalize_embeddings=True, show_progress_bar=False)
    cosines = (exact * models["float32"].encode_query(texts)).sum(axis=1)
    facts: dict[str, Any] = {"model": options.model, "least cosine, float32 with PyTorch": float(cosines.min())}
    print(facts, flush=True)
    for reference in options.data:
        facts[reference] = measure(reference, models, options.queries)
        print(reference, {name: round(value, 4) for name, value in facts[reference].items()}, flush=True)
    write_json(options.out, facts)
    return 0


if __name__ == "__main__":
    sys.exit(main())
