"""Recall of many ways to write a tool as text, by dense, lexical and hybrid search.

    python benchmarks/tool_text.py --data data --model bundled:minilm [...] --results FOLDER [--sets NAME ...]
        [--real FOLDER] [--limit 500] [--max-tools 0] [--split train] [--forms NAME ...]

For each catalogue and model: vectors of each form (tool_text_forms.py), several vectors per tool, weighted sums of
vectors, BM25 of each form, BM25F, and each pair in a hybrid, as the product adds their scores. Writes one JSON file of
means and one npz file of recall@5 per query, as soon as a catalogue is done. The choice is made on train queries.
--max-tools keeps the gold tools and those that BM25 mistakes for them, for a machine without a GPU.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from harness import make_parser
from tool_text_data import Trial, load_trial, mix
from tool_text_forms import FORMS, PARTS, FieldWeights, Words, bag_scores, count_fields, field_scores, parameter_texts

from pipelines.context import make_context
from retrievers.dense.embeddings import embed
from retrievers.dense.encoder import Encoder, check_device
from retrievers.fusion import DEPTH
from retrievers.lexical.bm25 import SCORE_UNIT
from retrievers.text import clean
from retrievers.types import Tool
from reward.metrics import Judged, measure

SETS = (
    *("acebench", "ansible", "apollo_tau", "aws_cli", "bfcl", "clinc150", "dria", "fc_mix", "hwu64", "mcp_mix"),
    *("mcpzero", "n8n", "nushell", "powershell", "sgd", "toolbench", "toolbench_extra", "toole", "toollens"),
    "toollinkos",
)
METRICS = ("recall@1", "recall@5", "recall@10", "ndcg@5", "comp@5")
KEPT = 20  # ranks of the default lists that are written, to look at errors afterwards
EACH_PARAMETER = "each parameter"  # a vector of its own
EMBEDDED = (
    *("default", "no parameters", "parameter names", "required only", "no types", "cut 100", "cut 200"),
    *("provider first", "provider first, no parameters", "no provider, no category", "no identifier"),
    *("first sentence", "name", "parameters", "name and provider", EACH_PARAMETER),
)
BAGS = ("default", "no parameters", "parameter names", "cut 200")
FIELD_WEIGHTS = {
    "fields": FieldWeights(),
    "fields, parameters .5": FieldWeights(parameter_names=0.5, parameter_texts=0.5),
    "fields, best of 200 settings": FieldWeights(
        name=1.5, parameter_names=0.75, parameter_texts=0.5, provider=2, b_description=0.5, k1=2.5
    ),
    "words, name 2": FieldWeights(name=2, together=True),
    "words, name 2, provider 2": FieldWeights(name=2, provider=2, together=True),
    "words, name 2, provider 2, parameters .75": FieldWeights(
        name=2, provider=2, parameter_names=0.75, parameter_texts=0.75, together=True
    ),
}
BEST_OF = {
    "best of whole and bare": ("default", "no parameters"),
    "best of bare and parameters": ("no parameters", "parameters"),
    "best of bare and name": ("no parameters", "name"),
    "best of whole and first sentence": ("default", "first sentence"),
    "best of whole, bare and name": ("default", "no parameters", "name"),
}
SUMS = {
    "sum of whole and bare": (("default", 1.0), ("no parameters", 1.0)),
    "sum of bare and parameters .25": (("no parameters", 1.0), ("parameters", 0.25)),
    "sum of bare and parameters .5": (("no parameters", 1.0), ("parameters", 0.5)),
    "sum of bare and parameters": (("no parameters", 1.0), ("parameters", 1.0)),
    "sum of bare and parameter names": (("no parameters", 1.0), ("parameter names", 1.0)),
    "sum of whole and name .5": (("default", 1.0), ("name", 0.5)),
    "sum of bare and name .5": (("no parameters", 1.0), ("name", 0.5)),
    "sum of bare and provider .25": (("no parameters", 1.0), ("name and provider", 0.25)),
    "sum of whole and first sentence": (("default", 1.0), ("first sentence", 1.0)),
    "sum of whole, bare and name": (("default", 1.0), ("no parameters", 1.0), ("name", 0.5)),
}


class Vectors:
    """Vectors of texts by one model."""

    def __init__(self, model: str, device: str) -> None:
        self._context = make_context(device)
        self._encoder = Encoder(self._context.find_model(model), 512 if device == "cuda" else 32, device)
        self.device = device

    def of(self, texts: Sequence[str]) -> torch.Tensor:
        """(texts, dimensions), of length 1."""
        return torch.from_numpy(embed(self._encoder, texts, self._context)).to(self.device).double()

    def queries(self, texts: Sequence[str]) -> torch.Tensor:
        """(texts, dimensions), as queries are embedded."""
        return torch.from_numpy(self._encoder.queries([clean(text) for text in texts])).to(self.device).double()


def dense_scores(trial: Trial, vectors: Vectors, forms: Sequence[str]) -> Iterator[tuple[str, torch.Tensor]]:
    """(queries, tools) by name of the way; ways whose forms are not asked for are left out."""
    writers: dict[str, Callable[[Tool], str]] = {**FORMS, **PARTS}
    texts = {form: [clean(writers[form](tool)) for tool in trial.tools] for form in forms if form in writers}
    of = {form: vectors.of(written) for form, written in texts.items()}
    queries = vectors.queries(trial.queries)
    for form in of:
        yield form, queries @ of[form].T
    for label, parts in BEST_OF.items():
        if all(part in of for part in parts):
            yield label, torch.stack([queries @ of[part].T for part in parts]).amax(0)
    for label, weighted in SUMS.items():
        if all(part in of for part, _ in weighted):
            total = torch.stack([weight * of[part] for part, weight in weighted]).sum(0)
            yield label, queries @ torch.nn.functional.normalize(total, dim=1).T
    if EACH_PARAMETER in forms and "no parameters" in of:
        bare = queries @ of["no parameters"].T
        best = best_parameter(trial, vectors, queries)
        yield "best of bare and each parameter", torch.maximum(bare, best)
        yield "bare, and .3 of the best parameter", bare + 0.3 * torch.maximum(bare, best)


def best_parameter(trial: Trial, vectors: Vectors, queries: torch.Tensor) -> torch.Tensor:
    """(queries, tools): similarity of the nearest parameter, -1 for a tool without any."""
    texts = [(index, clean(text)) for index, tool in enumerate(trial.tools) for text in parameter_texts(tool)]
    best = torch.full((len(trial.queries), len(trial.tools)), -1.0, dtype=torch.float64, device=vectors.device)
    if not texts:
        return best
    scores = queries @ vectors.of([text for _, text in texts]).T
    tools = torch.tensor([index for index, _ in texts], device=vectors.device).expand_as(scores)
    return best.scatter_reduce(1, tools, scores, "amax")


def lexical_scores(trial: Trial, device: str) -> Iterator[tuple[str, torch.Tensor]]:
    """The same by BM25 and BM25F."""
    vocabulary = Words(trial.queries)
    fields = count_fields(vocabulary, trial.tools)
    for form in BAGS:
        scores = bag_scores(vocabulary, [FORMS[form](tool) for tool in trial.tools])
        yield f"bm25 {form}", torch.from_numpy(scores).to(device)
    for label, weights in FIELD_WEIGHTS.items():
        yield f"bm25 {label}", torch.from_numpy(field_scores(vocabulary, fields, weights)).to(device)


def listed(scores: torch.Tensor, floor: float, digits: int) -> torch.Tensor:
    """(queries, tools): how far the first hundred are above the last of them; as `retrievers.fusion.add_scores`."""
    scores = torch.round(scores, decimals=digits)
    best, order = _top(torch.where(scores > floor, scores, -torch.inf), DEPTH)
    ends = best.isfinite().sum(1)
    last = torch.gather(best, 1, (ends - 1).clamp(min=0)[:, None])
    lowest = torch.where(ends[:, None] >= DEPTH, last, last.clamp(max=0.0))
    values = torch.where(best.isfinite(), (best - lowest).clamp(min=0.0), 0.0)
    return torch.zeros_like(scores).scatter_(1, order, values)


def _top(scores: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The k best per row, the smaller index first among equals."""
    nudge = torch.arange(scores.shape[1], device=scores.device).double() * 1e-12
    order = torch.topk(scores - nudge, min(k, scores.shape[1]), dim=1).indices
    return torch.gather(scores, 1, order), order


def shorten(trial: Trial, size: int) -> Trial:
    """The catalogue with the gold tools and those that BM25 ranks first, with or without parameters."""
    vocabulary = Words(trial.queries)
    texts = ([FORMS[form](tool) for tool in trial.tools] for form in ("default", "no parameters"))
    orders = [np.argsort(-bag_scores(vocabulary, written), axis=1, kind="stable") for written in texts]
    by_rank = np.stack(orders, axis=2).transpose(1, 0, 2).ravel()
    gold = set().union(*trial.gold)
    first = [index for index, tool in enumerate(trial.tools) if tool.id in gold]
    kept = sorted(list(dict.fromkeys([*first, *by_rank.tolist()]))[: max(size, len(first))])
    return replace(trial, tools=tuple(trial.tools[index] for index in kept))


class Judge:
    """Metrics of rankings of one catalogue."""

    def __init__(self, trial: Trial, device: str) -> None:
        positions = {tool.id: index for index, tool in enumerate(trial.tools)}
        self._gold = torch.zeros(len(trial.queries), len(trial.tools), dtype=torch.bool, device=device)
        for row, gold in enumerate(trial.gold):
            self._gold[row, [positions[tool] for tool in gold]] = True
        self._any = trial.any_of
        self.means: dict[str, dict[str, float]] = {}
        self.recall: dict[str, np.ndarray] = {}
        self.kept: dict[str, np.ndarray] = {}

    def add(self, label: str, scores: torch.Tensor) -> None:
        """Judge a (queries, tools) matrix in which more is better and 0 is not listed."""
        best, order = _top(scores, KEPT)
        hits = (torch.gather(self._gold, 1, order) & (best > 0)).cpu().numpy()
        gold = self._gold.sum(1).cpu().numpy()
        if self._any:
            hits, gold = hits & (hits.cumsum(axis=1) == 1), np.ones_like(gold)
        judged = Judged(hits, gold)
        values = {metric: measure(metric, judged) for metric in METRICS}
        self.means[label] = {metric: round(float(value.mean()), 4) for metric, value in values.items()}
        self.recall[label] = values["recall@5"].astype(np.float32)
        if label.removesuffix(" + bm25 default") in ("default", "bm25 default", "no parameters"):
            self.kept[label] = order.cpu().numpy().astype(np.int32)


def run_trial(
    trial: Trial, vectors: Vectors, lexical: Mapping[str, torch.Tensor], forms: Sequence[str], judge: Judge
) -> None:
    """Every dense and lexical way, and every pair of them."""
    for label, scores in lexical.items():
        judge.add(label, scores)
    for way, raw in dense_scores(trial, vectors, forms):
        own = listed(raw, -2.0, 6)
        judge.add(way, own)
        for label, scores in lexical.items():
            judge.add(f"{way} + {label}", own + scores / SCORE_UNIT)


def write_results(folder: Path, name: str, facts: Mapping[str, object], judge: Judge) -> None:
    """Means as JSON, recall per query and the default lists as npz."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps({**facts, "means": judge.means}, indent=1) + "\n")
    lists = {f"list {label}": order for label, order in judge.kept.items()}
    np.savez_compressed(folder / f"{name}.npz", **judge.recall, **lists)  # type: ignore[arg-type]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure all catalogues with all models."""
    parser = make_parser(__doc__)
    parser.add_argument("--data", type=Path, default=Path("data"), help="folder of data sets")
    parser.add_argument("--sets", nargs="+", default=list(SETS), help="data sets; mixed: several in one")
    parser.add_argument("--real", type=Path, help="folder with tools.jsonl and requests.jsonl")
    parser.add_argument("--model", nargs="+", default=["bundled:minilm"], help="encoders: folders, ids or bundled ones")
    parser.add_argument("--results", type=Path, required=True, help="folder of the results")
    parser.add_argument("--limit", type=int, default=500, help="queries per set")
    parser.add_argument("--split", default="train")
    parser.add_argument("--forms", nargs="+", default=list(EMBEDDED), help="texts that are embedded")
    parser.add_argument("--max-tools", type=int, default=0, help="tools per data set; 0: all")
    options = parser.parse_args(arguments)
    device = check_device(None)
    torch.set_float32_matmul_precision("high")
    trials = [load_trial(options.data / name, options.split, options.limit) for name in options.sets if name != "mixed"]
    if options.max_tools:
        trials = [shorten(trial, options.max_tools) for trial in trials]
    if options.real:
        trials.insert(0, load_trial(options.real, options.split, options.limit))
    if len(trials) > 5 or "mixed" in options.sets:
        trials.append(mix(trials, max_queries=60))
    models = {model.rpartition("/")[2].replace(":", "-"): Vectors(model, device) for model in options.model}
    for trial in trials:
        lexical = {label: listed(scores, 0.0, 9) for label, scores in lexical_scores(trial, device)}
        for name, vectors in models.items():
            start, judge = time.perf_counter(), Judge(trial, device)
            run_trial(trial, vectors, lexical, options.forms, judge)
            seconds = round(time.perf_counter() - start, 1)
            facts = {"model": name, "tools": len(trial.tools), "queries": len(trial.queries), "seconds": seconds}
            write_results(options.results / name, trial.name, facts, judge)
            print(name, trial.name, seconds, judge.means["default + bm25 default"], flush=True)


if __name__ == "__main__":
    main()
