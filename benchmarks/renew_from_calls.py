"""One real round of `rewrite-train renew` on a log of calls: does recall on held-out requests rise without labels?

    python benchmarks/renew_from_calls.py                    ten honest keys, about 5 minutes
    python benchmarks/renew_from_calls.py --hostile 3        and three keys that push one tool

Simulated agents (simulated_agents.py) use the sample's index; configs/renew/calls.yaml trains an encoder on what they
called, compares on dev, and promotes. Prints recall at 5 on the test queries of the first index and of the one that is
live afterwards. The training queries are asked; none of their labels reaches the round.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import yaml
from harness import machine, make_parser, write_json
from http_load import ROOT
from simulated_agents import SimulatedUse, reworded

from pipelines.cli.main import train
from pipelines.context import make_context
from pipelines.data.dataset import DataSet, load_dataset, stable_hash
from pipelines.search import ToolSearch
from retrievers.index import Index, build
from retrievers.settings import BM25Settings, DenseSettings
from reward.metrics import judge, measure

CONFIG = ROOT / "configs" / "renew" / "calls.yaml"


class LiveSearch:
    """The index that is live, with its answers."""

    def __init__(self, folder: Path) -> None:
        self._search = ToolSearch(Index(folder, make_context("cpu")), "dense")
        self._kept: dict[str, list[str]] = {}

    def search(self, text: str, k: int) -> list[str]:
        if text not in self._kept:
            self.read([text])
        return self._kept[text][:k]

    def read(self, texts: list[str]) -> None:
        """Search for all texts together."""
        rankings = self._search.search(texts, 200, detect=False)
        self._kept |= {text: list(ranking.ids) for text, ranking in zip(texts, rankings, strict=True)}

    def recall(self, data: DataSet, split: str) -> float:
        """Mean recall at 5."""
        queries = sorted(data.gold[split])
        self.read([data.queries[query].text for query in queries])
        lists = [self.search(data.queries[query].text, 5) for query in queries]
        return float(measure("recall@5", judge(lists, [data.gold[split][query] for query in queries])).mean())


def main() -> None:
    """Build, use, renew, and measure."""
    parser = make_parser(__doc__)
    parser.add_argument("--uses", type=int, default=2000, help="uses of the honest keys together (2000)")
    parser.add_argument("--hostile", type=int, default=0, help="keys that push one tool, as active as all others each")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--set", action="append", default=[], help="as in rewrite-train renew")
    options = parser.parse_args()
    data = load_dataset("bundled:sample")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        retrievers = {"bm25": BM25Settings(), "dense": DenseSettings(model="bundled:tools")}
        build(folder / "index", data.tools, retrievers, make_context("cpu"))
        live, pool = LiveSearch(folder / "index"), sorted(data.gold["train"])
        before = live.recall(data, "test")
        live.read([data.queries[query].text for query in pool])
        described = {tool.id: tool.description for tool in data.tools}
        missed = [
            query for query in pool if not data.gold["train"][query] & {*live.search(data.queries[query].text, 5)}
        ]
        texts = {
            query: reworded(data.queries[query].text, described[min(data.gold["train"][query])], stable_hash(query))
            for query in missed
        }
        live.read(list(texts.values()))
        use = SimulatedUse(data, pool, texts, folder / "calls", options.seed)
        use.use(live.search, options.uses, hostile=10 if options.hostile else 0, keys=options.hostile)
        use.log.close()
        config = yaml.safe_load(CONFIG.read_text())
        config |= {"output": f"{folder}/renewals", "seed": options.seed}
        config["live"]["index"], config["sources"]["calls"] = f"{folder}/index", f"{folder}/calls"
        (folder / "renew.yaml").write_text(yaml.safe_dump(config))
        words = [part for setting in options.set for part in ("--set", setting)]
        code = train(["renew", str(folder / "renew.yaml"), "--device", "cpu", *words])
        after = LiveSearch(folder / "index").recall(data, "test")
    print(f"exit code {code}; recall@5 on test: {before:.3f} before, {after:.3f} after")
    write_json(
        options.out, {"machine": machine(), "options": vars(options) | {"out": ""}, "before": before, "after": after}
    )


if __name__ == "__main__":
    main()
