"""`rewrite-train sft`: targets, base model and frozen retrievers -> a rewriter."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from pipelines.models import find_model
from pipelines.train.dev_evaluator import DevSettings
from pipelines.train.run_folder import begin_run, close_run, hash_text, is_finished, room_to_train
from pipelines.train.sources import SftSource, read_targets
from retrievers.dense.encoder import fingerprint
from retrievers.kind import Context
from rewrite.settings import SftSettings
from rewrite.sft.distributed import is_main_process
from rewrite.sft.examples import mix_examples, write_examples
from rewrite.sft.reporting import check_reporters


@dataclass(frozen=True, slots=True)
class SftConfig:
    """`rewrite-train sft`."""

    output: str
    """The run folder; the rewriter is written to its folder `rewriter`."""
    data: tuple[SftSource, ...]
    """Targets folders."""
    base: str = "bundled:smollm2-135m"
    """A Hugging Face id, a folder, or a bundled model; it needs a chat template."""
    training: SftSettings = field(default_factory=SftSettings)
    evaluation: DevSettings = field(default_factory=DevSettings)


def run_sft(config: SftConfig, context: Context, resume: bool, cuda: bool) -> Path:
    """Train, and write the rewriter's folder, metrics.json and report.html; a finished run is left as it is."""
    check_reporters(config.training.report_to)
    output, training = Path(config.output), config.training
    sources, template = read_targets(config.data)
    model = find_model(config.base)
    base = (config.base, fingerprint(model))
    if is_main_process():
        text = "".join(write_examples([*source.train, *source.dev]) for source in sources) + template.dump()
        begin_run(output, config, {"base": base[1], "targets": hash_text(text)}, resume)
    if is_finished(output):
        return close_run(output, training)
    from pipelines.train.training_run import make_card, make_task, write_results
    from rewrite.sft.run import RunOptions
    from rewrite.sft.train import train

    examples = mix_examples([(source.train, source.weight) for source in sources], training.seed)
    task, evaluator = make_task(model, template, sources, config.evaluation, training.seed, context, examples)
    with room_to_train(output):
        result = train(task, RunOptions(training, output, resume, context.show_progress, cuda))
        if evaluator is not None:
            write_results(
                output,
                task,
                evaluator,
                result,
                "fine-tuning",
                {},
                lambda fusion: make_card(base, training, task.metric, sources, result, fusion),
                context,
            )
    return close_run(output, training)
