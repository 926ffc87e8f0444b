"""Compare compact forms of a trained encoder, alone and in hybrids, on sets it never saw.

RUN is a folder that `rewrite-train encoder` wrote: `final`, judged on the config's `judged` sets, or `without-GROUP`,
judged on that group. Writes figures.json, scores.npz (per query) and rankings.npz (for other fusions) into OUT after
every set, and the adapters that --keep names.

python benchmarks/encoder_forms.py runs/encoder/tools/final runs/forms --share 0.5 --keep "0.5 int8"
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from pipelines import config as configs
from pipelines.models import find_model
from pipelines.train.encoder.evaluation import CHOICE, SetJudge, mean_scores
from pipelines.train.encoder.sets import load_sets
from pipelines.train.encoder.settings import CompactForm, EncoderConfig
from pipelines.train.encoder.training import TUNED, load_encoder
from retrievers.dense.adapter import compact, merge, weights_hash, write_adapter
from retrievers.dense.encoder import check_device
from retrievers.types import Ranking

FORMS = {
    "int8": CompactForm(0, 8),
    "int4": CompactForm(0, 4),
    "rank 128": CompactForm(128, 8),
    "rank 64": CompactForm(64, 8),
    "rank 32": CompactForm(32, 8),
}
KEPT_RANKS = 50
"""Ranks of the encoders and of BM25 that are kept per query."""


def make_models(
    config: EncoderConfig, run: Path, shares: list[float], forms: list[str], out: Path, keep: list[str], device: str
) -> tuple[dict[str, Any], dict[str, int]]:
    """The base and every form of the tuned encoder, loaded, by name; and the bytes of the adapters."""
    base = find_model(config.base)
    models: dict[str, Any] = {"base": load_encoder(base, device)}
    sizes: dict[str, int] = {}
    facts = {"base": config.base, "base_weights": weights_hash(base), "run": run.as_posix()}
    with tempfile.TemporaryDirectory() as scratch:
        for share in shares:
            for form in forms:
                start, name = time.perf_counter(), f"{share:g} {form}"
                folder = (out if name in keep else Path(scratch)) / f"adapter {name}".replace(" ", "-")
                settings = FORMS[form]
                arrays = compact(base, run / TUNED, share, settings.rank, settings.bits)
                sizes[name] = write_adapter(folder, arrays, facts | {"blend": share, "form": form})
                merge(base, folder, Path(scratch) / "merged" / name)
                models[name] = load_encoder(Path(scratch) / "merged" / name, device)
                print(f"{name}: {sizes[name] / 1e6:.1f} MB, {time.perf_counter() - start:.0f} s", flush=True)
    return models, sizes


def as_arrays(rankings: list[Ranking], rows: dict[str, int]) -> dict[str, np.ndarray]:
    """The first ranks as arrays: rows (-1 where a ranking ends) and scores."""
    indices = np.full((len(rankings), KEPT_RANKS), -1, np.int32)
    scores = np.zeros((len(rankings), KEPT_RANKS), np.float16)
    for number, ranking in enumerate(rankings):
        cut = ranking.cut(KEPT_RANKS)
        indices[number, : len(cut)] = [rows[tool] for tool in cut.ids]
        scores[number, : len(cut)] = cut.scores
    return {"rows": indices, "scores": scores}


def main() -> int:
    """Evaluate and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--share", action="append", type=float, default=[], help="blend; may be repeated (0.5)")
    parser.add_argument("--form", action="append", choices=list(FORMS), default=[], help="may be repeated (all)")
    parser.add_argument(
        "--keep", action="append", default=[], help="keep this adapter in OUT: '0.5 int8'; may be repeated"
    )
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="as in rewrite-train")
    parser.add_argument("--device")
    options = parser.parse_args()
    config = configs.load(options.run / "config.yaml", EncoderConfig, options.set)
    device = check_device(options.device)
    options.out.mkdir(parents=True, exist_ok=True)
    shares, forms = options.share or [0.5], options.form or list(FORMS)
    models, sizes = make_models(config, options.run, shares, forms, options.out, options.keep, device)
    figures: dict[str, Any] = {"bytes": sizes, "sets": {}}
    scores: dict[str, np.ndarray] = {}
    kept: dict[str, np.ndarray] = {}
    for data in load_sets(config.groups[config.leave_out] if config.leave_out else config.judged, config, False):
        judge = SetJudge(models["base"], data, device)
        rows = {tool: row for row, tool in enumerate(data.ids)}
        figures["sets"][data.name] = {"bm25": mean_scores({"bm25": judge.measure(judge.lexical)})["bm25"]}
        lists = {"bm25": judge.lexical}
        for name, model in models.items():
            result = judge(model)
            figures["sets"][data.name][name] = mean_scores(result.scores)
            for system, own in result.scores.items():
                scores |= {f"{data.name}|{name}|{system}|{metric}": v.astype(np.float16) for metric, v in own.items()}
            if name == "base" or name.endswith("int8"):
                lists[name] = result.rankings
        for name, rankings in lists.items():
            kept |= {f"{data.name}|{name}|{part}": own for part, own in as_arrays(rankings, rows).items()}
        gold = [list(needed) for needed in data.judged.gold]
        kept[f"{data.name}|gold"] = np.array([row for needed in gold for row in needed], np.int32)
        kept[f"{data.name}|gold_sizes"] = np.array([len(needed) for needed in gold], np.int32)
        line = ", ".join(f"{n} {figures['sets'][data.name][n]['dense'][CHOICE]:.3f}" for n in models)
        print(f"{data.name}: {CHOICE}: {line}", flush=True)
        (options.out / "figures.json").write_text(json.dumps(figures, indent=1) + "\n")
        np.savez_compressed(options.out / "scores.npz", **scores)  # type: ignore[arg-type]
        np.savez_compressed(options.out / "rankings.npz", **kept)  # type: ignore[arg-type]
    return 0


if __name__ == "__main__":
    sys.exit(main())
