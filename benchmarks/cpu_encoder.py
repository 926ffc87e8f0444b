"""Compare encoders on a CPU: ours on ONNX Runtime with sentence-transformers on PyTorch and ONNX, and with FastEmbed.

    python benchmarks/cpu_encoder.py [--queries 8] [--tools 24] [--rounds 3] [--model bundled:tools] [--out FILE]

The same weights, texts and number of threads (OMP_NUM_THREADS); all take turns in one run. A query is encoded alone,
tools in one call. A peer that cannot run is a line that says why. FastEmbed gets an export of the same model.
sentence-transformers on ONNX needs packages that do not go together with ours; `--older FOLDER` has them, written by
pip install --no-deps --target FOLDER "transformers>=4.57,<5" "sentence-transformers>=5.1,<5.3" optimum-onnx==0.1.0 \
    "optimum>=2.0,<2.2" "huggingface_hub<1" "tokenizers>=0.22,<0.23" "datasets<4", and it runs in a process of its own.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from harness import FigureTable, make_parser, take_turns, write_json
from sentence_transformers import SentenceTransformer
from synthetic import make_queries
from transformers import AutoModel

from pipelines.data.sample_data import sample_folder
from pipelines.models import find_model
from retrievers.catalogue import read_catalogue
from retrievers.dense.cpu.session import count_threads
from retrievers.dense.encoder import Encoder
from retrievers.text import clean, document

OURS, PEER = "ours", "sentence-transformers"
Encode = Callable[[Sequence[str]], np.ndarray]
OLDER = """
import json, os, sys, numpy, onnxruntime
from sentence_transformers import SentenceTransformer
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = int(sys.argv[2])
out = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
settings = {"session_options": options}
model = SentenceTransformer(sys.argv[1], device="cpu", backend="onnx", model_kwargs=settings)
for line in sys.stdin:
    vectors = model.encode(json.loads(line), normalize_embeddings=True, show_progress_bar=False)
    print(json.dumps(numpy.asarray(vectors).tolist()), file=out, flush=True)
"""
"""Encodes lines of texts; the time that JSON takes, under a millisecond per vector, counts as its own."""


def main() -> None:
    """Time every encoder on queries and tools."""
    parser = make_parser(__doc__)
    parser.add_argument("--queries", type=int, default=8, help="per round")
    parser.add_argument("--tools", type=int, default=24, help="per round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--model", default="bundled:tools")
    parser.add_argument("--older", type=Path, help="packages of sentence-transformers on ONNX")
    options = parser.parse_args()
    torch.set_num_threads(count_threads())
    queries = make_queries([], options.queries)
    documents = [clean(document(tool)) for tool in read_catalogue(sample_folder())][:: 224 // options.tools or 1]
    with tempfile.TemporaryDirectory() as scratch:
        encoders, missing = make_encoders(find_model(options.model), Path(scratch), options.older)
        for name, reason in missing.items():
            print(f"{name} cannot run: {reason}")
        exact = encoders[PEER](documents)
        closeness = {name: float((encode(documents) * exact).sum(axis=1).mean()) for name, encode in encoders.items()}
        print("mean cosine with PyTorch:", {name: round(value, 4) for name, value in closeness.items()})
        figures = FigureTable()
        compare(figures, "queries", encoders, [[query] for query in queries], options.rounds)
        compare(figures, "tools", encoders, [documents], options.rounds)
    write_json(options.out, {"figures": figures.rows, "cosines": closeness, "missing": missing})


def make_encoders(folder: Path, scratch: Path, older: Path | None) -> tuple[dict[str, Encode], dict[str, str]]:
    """Encoders by name, and the reasons of those that cannot run."""
    ours = Encoder(folder, 32, "cpu")
    plain = SentenceTransformer(str(folder), device="cpu", local_files_only=True)
    encoders: dict[str, Encode] = {OURS: ours.documents, PEER: lambda texts: encode_plain(plain, texts)}
    missing = {}
    makers: dict[str, Callable[[Path, Path], Encode]] = {
        f"{PEER} on ONNX": partial(_older_onnx, older) if older else _plain_onnx,
        "FastEmbed": _fastembed,
    }
    for name, make in makers.items():
        try:
            encoders[name] = make(folder, scratch)
            encoders[name](["hotel"])
        except Exception as error:  # the reason is the row of a peer that cannot run
            encoders.pop(name, None)
            missing[name] = " ".join(str(error).split())[:160] or type(error).__name__
    return encoders, missing


def encode_plain(model: Any, texts: Sequence[str]) -> np.ndarray:
    """Unit vectors as the library's documentation shows it."""
    return np.asarray(model.encode(list(texts), normalize_embeddings=True, show_progress_bar=False))


def _plain_onnx(folder: Path, _: Path) -> Encode:
    model = SentenceTransformer(str(folder), device="cpu", backend="onnx", local_files_only=True)
    return lambda texts: encode_plain(model, texts)


def _older_onnx(packages: Path, folder: Path, scratch: Path) -> Encode:
    """The library with its ONNX backend, which exports the model, in a process with older packages."""
    copy = scratch / "older"
    shutil.copytree(folder, copy)
    environment = {**os.environ, "PYTHONPATH": str(packages.resolve())}
    command = [sys.executable, "-c", OLDER, str(copy), str(count_threads())]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    worker = subprocess.Popen(command, env=environment, text=True, **pipes)  # ends with our end of its input

    def encode(texts: Sequence[str]) -> np.ndarray:
        assert worker.stdin is not None
        assert worker.stdout is not None
        worker.stdin.write(json.dumps(list(texts)) + "\n")
        worker.stdin.flush()
        return np.array(json.loads(worker.stdout.readline()), np.float32)

    return encode


def _fastembed(folder: Path, scratch: Path) -> Encode:
    from fastembed import TextEmbedding
    from fastembed.common.model_description import ModelSource, PoolingType

    for file in folder.glob("*.json"):
        (scratch / file.name).write_bytes(file.read_bytes())
    _export(folder, scratch / "model.onnx")
    source = ModelSource(hf="bench/encoder")
    TextEmbedding.add_custom_model("bench/encoder", PoolingType.MEAN, True, source, 384, model_file="model.onnx")
    model = TextEmbedding("bench/encoder", threads=count_threads(), specific_model_path=str(scratch))
    return lambda texts: np.stack(list(model.embed(list(texts), batch_size=32)))


class _LastHidden(torch.nn.Module):
    """A model whose one output is its last layer."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.model: Any = AutoModel.from_pretrained(folder, attn_implementation="eager")

    def forward(self, ids: torch.Tensor, mask: torch.Tensor, types: torch.Tensor) -> torch.Tensor:
        """(texts, tokens, width)."""
        hidden: torch.Tensor = self.model(input_ids=ids, attention_mask=mask, token_type_ids=types)[0]
        return hidden


def _export(folder: Path, file: Path) -> None:
    """The model by PyTorch's exporter, in float32."""
    words = torch.ones(2, 8, dtype=torch.long)
    axes = {0: "batch", 1: "length"}
    names = ["input_ids", "attention_mask", "token_type_ids"]
    torch.onnx.export(
        _LastHidden(folder).eval(), (words, words, words * 0), str(file), input_names=names,
        output_names=["last_hidden_state"], dynamic_axes=dict.fromkeys([*names, "last_hidden_state"], axes),
        opset_version=17, dynamo=False,
    )  # fmt: skip


def compare(figures: FigureTable, what: str, encoders: dict[str, Encode], calls: list[list[str]], rounds: int) -> None:
    """Encode the texts of all calls once per round, by every encoder in turn."""
    count = sum(map(len, calls))
    figures.title(
        f"{count} {what} a round, {len(calls)} calls, {count_threads()} threads, load {os.getloadavg()[0]:.1f}"
    )
    runs = {name: lambda _, encode=encode: [encode(texts) for texts in calls] for name, encode in encoders.items()}
    seconds = take_turns(runs, rounds)
    for name, values in seconds.items():
        figures.note(f"{name}, {what}", "1/s", [count / value for value in values], digits=1)
    for name in encoders:
        if name != OURS:
            figures.note_ratio(f"ours / {name}, {what}", seconds[name], seconds[OURS])


if __name__ == "__main__":
    main()
