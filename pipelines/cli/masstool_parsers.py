"""The flags of `rewrite-index` that are for one kind of retriever: MassTool, ToolGen, ToolWeaver."""

from __future__ import annotations

from pathlib import Path

from pipelines.cli.flags import EXITS, Commands, config_arguments, device_argument, index_argument, later


def index_kinds(commands: Commands) -> None:
    """What looks at a MassTool, a ToolGen or a ToolWeaver."""
    _detect_command(commands)
    _ablate_command(commands)
    _tree_command(commands)
    _agent_command(commands)


def _detect_command(commands: Commands) -> None:
    detect = commands.add_parser("detect", help="how well a MassTool tells which queries need a tool", epilog=EXITS)
    detect.description = (
        "Ask an index's detector about labelled queries, and print source by source how many of those that need a tool "
        "were kept, and how many of the others were turned away."
    )
    detect.set_defaults(handler=later("masstool_commands", "detect_labels"))
    index_argument(detect)
    detect.add_argument("data", metavar="DATA", help="a folder with queries.jsonl and labels/, or bundled:sample")
    detect.add_argument("--retriever", default="masstool", metavar="NAME", help="its name in the index (masstool)")
    detect.add_argument(
        "--split", default="test", choices=("train", "dev", "test"), help="which of DATA's labels (test)"
    )
    detect.add_argument(
        "--threshold", type=float, metavar="P", help="the least probability that counts as `needs a tool` (the index's)"
    )
    detect.add_argument("--json", action="store_true", help="print JSON")
    device_argument(detect)


def _ablate_command(commands: Commands) -> None:
    ablate = commands.add_parser("ablate", help="train MassTool without each of its parts, side by side", epilog=EXITS)
    ablate.description = (
        "Train MassTool whole and without each of its parts on the same vectors, from train alone (`train.again` of "
        "CONFIG is left out), and print their metrics side by side with those of the encoder alone. Writes no index."
    )
    ablate.set_defaults(handler=later("masstool_commands", "ablate"))
    config_arguments(ablate, "configs/index/*-masstool.yaml")
    ablate.add_argument(
        "--without",
        action="append",
        metavar="PART",
        help="leave out this part; may be repeated (default: each in turn)",
    )
    ablate.add_argument("--split", default="test", choices=("dev", "test"), help="which queries are asked (test)")
    ablate.add_argument("--out", type=Path, metavar="FILE", help="also write the figures as JSON")
    device_argument(ablate)


def _tree_command(commands: Commands) -> None:
    tree = commands.add_parser("tree", help="the codes of a ToolWeaver as a page", epilog=EXITS)
    tree.description = "Write a page that shows which tools share the beginning of their codes."
    tree.set_defaults(handler=later("tree_commands", "show_tree"))
    index_argument(tree)
    tree.add_argument("--retriever", default="toolweaver", metavar="NAME", help="its name in the index (toolweaver)")
    tree.add_argument("--output", type=Path, metavar="FILE", help="the page (INDEX-tree/report.html)")
    tree.add_argument("--json", action="store_true", help="print the codes as JSON in place of the page")


def _agent_command(commands: Commands) -> None:
    agent = commands.add_parser(
        "agent", help="let a ToolGen or ToolWeaver call tools, and score its calls", epilog=EXITS
    )
    agent.description = (
        "Let a model that was trained with the agent stage (`train.agent`) do tasks with the sample's tools, and say "
        "how many calls are right. --base runs an untrained model beside it, with retrieved tools in its prompt."
    )
    agent.set_defaults(handler=later("agent_commands", "agent"))
    index_argument(agent)
    agent.add_argument("--retriever", default="toolgen", metavar="NAME", help="its name in the index (toolgen)")
    agent.add_argument("--tasks", default="bundled:sample", help="trajectories to be done, JSON lines (bundled:sample)")
    agent.add_argument("--most", type=int, default=0, metavar="N", help="only the first N tasks; 0: all (0)")
    agent.add_argument(
        "--base", metavar="MODEL", help="an untrained model to compare with, such as bundled:smollm2-135m"
    )
    agent.add_argument("--shown", type=int, default=5, metavar="N", help="tools in the prompt of --base (5)")
    agent.add_argument("--shown-by", metavar="NAME", help="the retriever that finds those (default: --retriever)")
    agent.add_argument("--output", type=Path, metavar="FILE", help="write every task's calls there, JSON lines")
    device_argument(agent)
    agent.add_argument("--json", action="store_true", help="print JSON")
