"""The flags of `rewrite-train`."""

from __future__ import annotations

import argparse
from pathlib import Path

from pipelines.cli.flags import EXITS, Commands, config_arguments, device_argument, later


def add_train_commands(commands: Commands) -> None:
    """What trains a rewriter, and what it is trained on."""
    targets = commands.add_parser("targets", help="data set -> what a rewriter should answer", epilog=EXITS)
    targets.description = (
        "Write, for every training query of a data set, the lines with which a frozen retriever finds its gold tools "
        "best, and print the oracle: what a rewriter would reach that wrote them perfectly."
    )
    targets.set_defaults(handler=later("train_commands", "targets"))
    config_arguments(targets, "configs/targets/")
    sft = commands.add_parser("sft", help="targets -> a rewriter, by supervised fine-tuning", epilog=EXITS)
    sft.set_defaults(handler=later("train_commands", "sft"))
    config_arguments(sft, "configs/sft/")
    sft.add_argument("--resume", action="store_true", help="go on from the last checkpoint in the output folder")
    sft.description = (
        "Fine-tune a language model on targets. On the way it rewrites dev queries, a retriever searches for what it "
        "wrote, and the best checkpoint is kept. Ctrl-C leaves a checkpoint. On several GPUs: accelerate launch "
        "$(which rewrite-train) sft CONFIG"
    )
    aligning = _align_commands(commands)
    device_argument(targets, sft, *aligning)
    _merge_command(commands)
    _renew_command(commands)
    _utterances_command(commands)


def _merge_command(commands: Commands) -> None:
    merge = commands.add_parser("merge", help="adapter + base model -> one model folder", epilog=EXITS)
    merge.set_defaults(handler=later("train_commands", "merge"))
    merge.description = "Merge a rewriter's LoRA adapter into its base model, for servers that take no adapters."
    merge.add_argument("rewriter", type=Path, metavar="REWRITER", help="a rewriter's folder, or the run it came from")
    merge.add_argument("output", type=Path, metavar="OUTPUT", help="the folder to write")
    merge.add_argument("--base", help="the base model, if it lies elsewhere now (default: as its card says)")


def _align_commands(commands: Commands) -> tuple[argparse.ArgumentParser, ...]:
    probe = commands.add_parser("probe", help="is there anything to gain from alignment?", epilog=EXITS)
    probe.description = (
        "Have a rewriter answer each query several times, score the answers by what the retriever finds, and say "
        "whether alignment can gain anything. Trains nothing."
    )
    pairs = commands.add_parser("pairs", help="rewriter + queries -> pairs of answers, for DPO", epilog=EXITS)
    pairs.description = (
        "Have a rewriter answer each query several times, score the answers by what the retriever finds, and write "
        "pairs of a better and a worse one. Killed at any moment, the same command goes on."
    )
    align = commands.add_parser("align", help="rewriter + reward -> a better one: DPO, GRPO, RLOO, PPO", epilog=EXITS)
    align.description = (
        "Align a rewriter with what a frozen retriever finds: dpo, grpo, rloo, ppo or best-of-n. Dev is judged by "
        "retrieval on the way, the best checkpoint is kept, and a rewriter whose answers go to pieces stops the run. "
        "Ctrl-C leaves a checkpoint. On several GPUs: accelerate launch $(which rewrite-train) align CONFIG"
    )
    align.add_argument("--resume", action="store_true", help="go on from the last checkpoint in the output folder")
    for name, command in (("probe", probe), ("pairs", pairs), ("align", align)):
        command.set_defaults(handler=later("align_commands", name))
        config_arguments(command, f"configs/{name}/")
    return probe, pairs, align


def _renew_command(commands: Commands) -> None:
    renew = commands.add_parser(
        "renew", help="feedback and agents' logs -> a better index or rewriter, taken up if it is", epilog=EXITS
    )
    renew.description = (
        "Learn from what users confirmed and agents called: collect it, retrain, compare the result with what is live "
        "on queries that are never learned, and put it in its place if it is better and nowhere worse. Killed at any "
        "moment, the same command goes on."
    )
    renew.set_defaults(handler=later("renew_commands", "run_renew"))
    config_arguments(renew, "configs/renew/")
    renew.add_argument("--back", action="store_true", help="put back what was live before the last round that won")
    device_argument(renew)


def _utterances_command(commands: Commands) -> None:
    made = commands.add_parser("utterances", help="catalogue without labels -> made-up utterances", epilog=EXITS)
    made.description = (
        "For each tool of an index, have a language model write what users might say who need it; keep what leads the "
        "retriever back to that tool, and write it as a data set. Killed at any moment, the same command goes on."
    )
    made.set_defaults(handler=later("utterance_commands", "run_utterances"))
    config_arguments(made, "configs/utterances/")
    device_argument(made)
