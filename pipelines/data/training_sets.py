"""Turn data sets into training sets of retrievers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from pipelines.data.dataset import DataSet, Gold, load_dataset
from pipelines.data.folds import without_fold
from pipelines.data.label_augmentation import add_catalogue_queries, add_joined_texts
from pipelines.data.labels import Label, has_labels, load_labels
from pipelines.data.splits import apply_protocol, leave_one_out
from retrievers.errors import BadInput
from retrievers.generative.settings import GenerativeTraining
from retrievers.masstool.settings import MassToolTraining
from retrievers.settings import DenseTraining
from retrievers.text import clean, document
from retrievers.training_set import Examples, Labels, TrainingSet

NONE = Labels()


def labelled_set(settings: MassToolTraining, text: Sequence[str]) -> list[TrainingSet]:
    """The training set of MassTool, with the labels that its settings name, or else the data set's own."""
    source = settings.data[0]
    data = without_fold(apply_protocol(load_dataset(source.path), settings.protocol), settings)
    examples = training_set(data, source.text or text)
    folders = settings.labels or ((source.path,) if has_labels(source.path) else ())
    labels = [load_labels(folder) for folder in folders]
    # Queries that the protocol keeps for dev and test of this data set must not come in as labels.
    kept = {clean(data.queries[query].text) for split in ("dev", "test") for query in data.gold.get(split, {})}
    train = _labels([label for one in labels for label in one.split("train")], kept)
    tests = {clean(data.queries[query].text) for query in data.gold.get("test", {})}
    known = {*train.queries, *examples.train.queries, *tests}  # not used to choose a threshold
    dev = _labels([label for one in labels for label in one.split("dev")], known)
    if labels and not any(train.needs):
        train = _labels([], set(), train, examples.train.queries)
    if labels and not any(dev.needs):
        dev = _labels([], set(), dev, examples.dev.queries)
    if labels:
        train = add_catalogue_queries(train, examples.train.queries, settings.own_labels, dev.queries)
        dev = add_catalogue_queries(dev, examples.dev.queries, settings.own_labels, train.queries)
        train, dev = (add_joined_texts(labels_of, settings.joined_labels) for labels_of in (train, dev))
    return [replace(examples, labels=train, dev_labels=dev)]


def _labels(rows: Sequence[Label], kept: set[str], more: Labels = NONE, needing: Sequence[str] = ()) -> Labels:
    """Labels of retrievers, without the texts in `kept`; all texts of `needing` need a tool."""
    pairs = [(text, row.needs) for row in rows if (text := clean(row.text)) and text not in kept]
    pairs += [*zip(more.queries, more.needs, strict=True), *((text, True) for text in needing)]
    return Labels(tuple(text for text, _ in pairs), tuple(needs for _, needs in pairs))


def training_sets(settings: DenseTraining | GenerativeTraining, text: Sequence[str]) -> list[TrainingSet]:
    """One training set per source, without the held-out one; sources may index other fields than the index (`text`)."""
    data = {source: apply_protocol(load_dataset(source.path), settings.protocol) for source in settings.data}
    names = [dataset.name for dataset in data.values()]
    if len(set(names)) < len(settings.data):
        raise BadInput(f"two data sets to train on have the same name: {', '.join(names)}")
    hold_out = settings.hold_out if isinstance(settings, DenseTraining) else ""
    kept = leave_one_out(list(data.values()), hold_out)[0] if hold_out else list(data.values())
    sets = [training_set(one, source.text or text) for source, one in data.items() if one in kept]
    if isinstance(settings, GenerativeTraining) and settings.agent.epochs:
        from pipelines.data.trajectories import load_trajectories

        sets[0] = replace(sets[0], trajectories=tuple(load_trajectories(settings.agent.trajectories)))
    return sets


def training_set(data: DataSet, text: Sequence[str]) -> TrainingSet:
    """Train and dev of one data set, tools as rows."""
    rows = {tool.id: row for row, tool in enumerate(data.tools)}
    documents = tuple(clean(document(tool, text)) for tool in data.tools)
    train, dev = (_examples(data, data.split(split), rows) for split in ("train", "dev"))
    return TrainingSet(data.name, documents, train, dev, tuple(tool.id for tool in data.tools))


def _examples(data: DataSet, gold: Gold, rows: Mapping[str, int]) -> Examples:
    order = sorted(gold)
    return Examples(
        tuple(clean(data.queries[query].text) for query in order),
        tuple(tuple(sorted(rows[tool] for tool in gold[query])) for query in order),
    )
