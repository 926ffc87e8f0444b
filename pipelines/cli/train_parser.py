"""Flags of `rewrite-train`."""

from __future__ import annotations

from pathlib import Path

from pipelines.cli.flags import Subparsers, add_command, config_arguments, device_argument, lazy

COMMANDS = {
    "targets": (
        "data set -> the answers that a rewriter should give",
        "For every training query of a data set, write the lines with which a frozen retriever finds its gold tools "
        "best, and print the oracle: the metrics of a rewriter that writes them perfectly.",
    ),
    "sft": (
        "targets -> a rewriter, by supervised fine-tuning",
        "Fine-tune a language model on targets. Meanwhile it rewrites dev queries, a retriever searches with its "
        "rewrites, and the best checkpoint is kept. Ctrl-C leaves a checkpoint. On several GPUs: accelerate launch "
        "$(which rewrite-train) sft CONFIG",
    ),
    "probe": (
        "estimate whether alignment can gain anything",
        "Let a rewriter answer each query several times, score the answers by what the retriever finds, and estimate "
        "whether alignment can gain anything. Trains nothing.",
    ),
    "pairs": (
        "rewriter + queries -> pairs of answers, for DPO",
        "Let a rewriter answer each query several times, score the answers by what the retriever finds, and write "
        "pairs of a better and a worse one. After a kill, the same command continues.",
    ),
    "align": (
        "rewriter + reward -> a better one: DPO, GRPO, RLOO, PPO",
        "Align a rewriter with what a frozen retriever finds: dpo, grpo, rloo, ppo or best-of-n. Dev is evaluated by "
        "retrieval, the best checkpoint is kept, and a collapse of the rewriter stops the run. Ctrl-C leaves a "
        "checkpoint. On several GPUs: accelerate launch $(which rewrite-train) align CONFIG",
    ),
    "renew": (
        "feedback and agents' logs -> a better index or rewriter, promoted if it is",
        "Learn from what users confirmed and agents called: collect it, retrain, compare the result with what is live "
        "on queries that are never trained on, and promote it if it is better and nowhere worse. After a kill, the "
        "same command continues.",
    ),
    "encoder": (
        "data sets -> one encoder for all catalogues, as a small adapter",
        "Train one encoder on many data sets. --leave-one-out first trains once without each group of data sets and "
        "evaluates on that group, which chooses how far the weights move from the base; without it, the final encoder "
        "is trained on all groups, written as an adapter, and evaluated on sets it never saw. After a kill, the same "
        "command continues.",
    ),
    "rerank": (
        "data sets + lists of retrievers -> a reranker",
        "Train a cross-encoder or a language model to put the first tools of a list into a better order. "
        "--leave-one-out first trains once without each group of data sets and evaluates on that group, which chooses "
        "depth and weight; without it, the final reranker is trained on all groups, and chooses on dev where no group "
        "was left out. After a kill, the same command continues.",
    ),
    "utterances": (
        "catalogue without labels -> synthetic utterances",
        "Let a language model write, for each tool of an index, what users who need it might say; keep the utterances "
        "that lead the retriever back to that tool, and write them as a data set. After a kill, the same command "
        "continues.",
    ),
}
MODULES = {
    "renew": "train_renew",
    "utterances": "train_utterances",
    "encoder": "train_catalogues",
    "rerank": "train_catalogues",
}


def add_train_commands(commands: Subparsers) -> None:
    """Add all commands of `rewrite-train`."""
    for name, (help, description) in COMMANDS.items():
        handler = lazy(MODULES.get(name, "train_rewriter"), f"run_{name}")
        parser = add_command(commands, name, handler, help, description=description)
        config_arguments(parser, f"configs/{name}/")
        device_argument(parser)
        if name in ("sft", "align"):
            parser.add_argument("--resume", action="store_true", help="continue from the output's last checkpoint")
        if name in ("encoder", "rerank"):
            parser.add_argument(
                "--leave-one-out", action="store_true", help="train without each group in turn and evaluate on it"
            )
        if name == "renew":
            parser.add_argument(
                "--rollback", action="store_true", help="restore what was live before the last promotion"
            )
    merge = add_command(
        commands, "merge", lazy("train_rewriter", "run_merge"), "adapter + base model -> one model folder"
    )
    merge.description = "Merge a rewriter's LoRA adapter into its base model, for servers that take no adapters."
    merge.add_argument("rewriter", type=Path, metavar="REWRITER", help="a rewriter's folder, or its run folder")
    merge.add_argument("output", type=Path, metavar="OUTPUT", help="folder to write")
    merge.add_argument("--base", help="the base model, if it has moved (default: the one on the rewriter's card)")
