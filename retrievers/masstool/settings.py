"""What can be set of MassTool. Stdlib only, so that reading a config costs nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from retrievers.errors import BadInput
from retrievers.settings import TrainingSource

Transfer = Literal["gating", "attention", "concatenation", "addition", "none"]


@dataclass(frozen=True, slots=True)
class Modules:
    """The parts of MassTool, each to be left out: what an ablation is made of."""

    detection: bool = True
    """The tower that tells whether a tool is needed, and its loss; without it there is no detector."""
    graph: bool = True
    """Queries and tools (and scenes) inform each other along gold edges."""
    intent: bool = True
    """SUIM: training queries like this one lend it their tools."""
    filter: bool = True
    """Neighbours less alike than `threshold` are left out."""
    contrast: bool = True
    """The tool view and the scene view of one query are pulled together, those of others apart."""
    transfer: Transfer = "gating"
    """AdaKT: how the detection tower's hidden state reaches retrieval."""


@dataclass(frozen=True, slots=True)
class Beside:
    """What `how: joint` tunes the encoder for beside the right tools and detection, and how it saves time."""

    scenes: float = 0.0
    """Weight of finding the gold set among all gold sets."""
    votes: float = 0.0
    """Weight of what the other training queries vote for, each as much as it is alike."""
    masked: float = 0.0
    """The share of a training query's tokens that is hidden, drawn anew each time."""
    refreshed: int = 0
    """Documents encoded anew in a step, the others being as they were; 0: all. For catalogues within `candidates`."""
    averaged: float = 0.0
    """What a step leaves of the weights' running mean (0.99 remembers about a hundred steps); dev takes the mean or the
    weights themselves, whichever it likes better. 0: no mean."""

    def __post_init__(self) -> None:
        if min(self.scenes, self.votes, self.refreshed) < 0 or not (0 <= self.masked < 1 and 0 <= self.averaged < 1):
            raise BadInput("scenes, votes and refreshed must not be negative, masked and averaged are shares")


@dataclass(frozen=True, slots=True)
class EncoderTuning:
    """How the encoder is tuned before the rest is learned."""

    how: Literal["first", "joint"] = "first"
    """first: for retrieval alone, as a dense index does it. joint: retrieval and detection in one loss."""
    epochs: int = 8
    batch_size: int = 256
    learning_rate: float = 2e-4
    temperature: float = 0.05
    candidates: int = 1024
    max_length: int = 256
    patience: int = 3
    blends: tuple[float, ...] = (0.0, 0.25, 0.5, 0.75, 1.0)
    """As in a dense index's `train`."""
    beside: Beside = Beside()

    def __post_init__(self) -> None:
        if self.how == "first" and self.beside != Beside():
            raise BadInput("only `how: joint` tunes an encoder for anything beside", "beside")


@dataclass(frozen=True, slots=True)
class MassToolTraining:
    """What MassTool learns from, and how."""

    data: tuple[TrainingSource, ...]
    """One data set; its tools are the index's."""
    labels: tuple[str, ...] = ()
    """Folders with labels/train.tsv: queries that need a tool and others. Empty: the data set's own, if it has any."""
    own_labels: float = 1.0
    """For each label that needs a tool, so many of the data set's own queries are labelled as well: they all do."""
    joined_labels: float = 0.25
    """For each label, so many texts that join two to six of one kind: length must not give the label away."""
    protocol: Literal["official", "unseen-tools"] = "official"
    hold_out: str = ""
    """Stays empty: what is learned from one data set cannot be tested on another's tools."""
    encoder: EncoderTuning | None = None
    """None: the encoder stays as it is."""
    epochs: int = 60
    batch_size: int = 512
    learning_rate: float = 1e-3
    weight_decay: float = 1e-4
    temperature: float = 0.05
    """Of the softmax over tools; and of the attention when training starts."""
    candidates: int = 4096
    """Tools in the softmax: all that some training query needs, or else gold and a random fill."""
    contrast: float = 0.04
    """Weight of the contrastive losses."""
    contrast_temperature: float = 0.1
    detection: float = 0.1
    """Weight of the detection loss."""
    warm_up: int = 400
    """Steps of detection alone, before the rest is learned."""
    edge_dropout: float = 0.2
    dropout: float = 0.1
    text_dropout: float = 0.3
    """How often a query is asked without its own text's term, so that its neighbours learn to answer alone."""
    patience: int = 8
    unasked: float | None = None
    """How much it counts on dev that tools which no training query needs are found too, between 0 and 1. None: as much
    as their share of the catalogue."""
    again: bool = False
    """Once dev has chosen, all is learned once more, as chosen, from train and dev together: twice the time."""
    seed: int = 0

    def __post_init__(self) -> None:
        if len(self.data) != 1:
            raise BadInput("MassTool learns from one data set: the one whose tools are indexed", "data")
        if self.hold_out:
            raise BadInput("there is no other data set to learn from", "hold_out")
        if min(self.epochs, self.batch_size, self.candidates, self.patience) < 1 or self.seed < 0:
            raise BadInput("epochs, batch_size, candidates and patience are at least 1, seed is not negative")
        if min(self.learning_rate, self.temperature, self.contrast_temperature) <= 0:
            raise BadInput("learning_rate and temperatures must be positive")
        if min(self.weight_decay, self.contrast, self.detection, self.warm_up) < 0:
            raise BadInput("weight_decay, contrast, detection and warm_up must not be negative")
        if min(self.own_labels, self.joined_labels) < 0:
            raise BadInput("own_labels and joined_labels must not be negative")
        if self.again and self.encoder is not None and self.encoder.how != "joint":
            raise BadInput("learning again needs an encoder tuned jointly, or none that is tuned", "again")
        if self.unasked is not None and not 0 <= self.unasked <= 1:
            raise BadInput("unasked is a share between 0 and 1", "unasked")
        if any(not 0 <= share < 1 for share in (self.edge_dropout, self.dropout, self.text_dropout)):
            raise BadInput("dropouts are shares between 0 and 1")


@dataclass(frozen=True, slots=True)
class MassToolSettings:
    """Search by meaning, by what similar queries needed, and by a graph of both."""

    kind: Literal["masstool"] = "masstool"
    model: str = "bundled:minilm"
    """A Hugging Face id, a folder (of a tuned encoder, say), or `bundled:minilm`."""
    train: MassToolTraining | None = None
    """None: nothing is learned; the index is a dense one that remembers confirmed queries."""
    modules: Modules = Modules()
    faithful: bool = False
    """As the authors' code has it: leaking edges, free query vectors, six cosines, ten-item lists, double softmax. They
    add no labels to those given: own_labels and joined_labels are 0."""
    neighbours: int = 10
    threshold: float = 0.82
    """How alike a neighbour must be (cosine), where faithful, and how alike a confirmed query. Else it starts where
    neighbours usually are, and dev chooses."""
    layers: int = 1
    """Of graph propagation."""
    adapter: bool = True
    """Learn a linear map of query vectors and a vector a tool on top of the encoder's."""
    ann_pool_above: int = 20_000
    """Pools with more queries than this are searched by a graph (HNSW)."""
    batch_size: int = 64
    ann_above: int = 50_000
    ann_links: int = 32
    ann_effort: int = 256
    """As in a dense index."""

    def __post_init__(self) -> None:
        if min(self.batch_size, self.ann_above, self.ann_links, self.ann_effort, self.ann_pool_above) < 1:
            raise BadInput("batch_size, ann_above, ann_links, ann_effort and ann_pool_above must be at least 1")
        if not 1 <= self.neighbours <= 100 or not 1 <= self.layers <= 4:
            raise BadInput("neighbours are 1 to 100, layers 1 to 4")
        if self.faithful and self.train is not None and self.train.again:
            raise BadInput("the authors' behaviour is not learned again", "again")
        if self.faithful and self.train is not None and (self.train.own_labels or self.train.joined_labels):
            raise BadInput("the authors add no labels: faithful needs own_labels: 0 and joined_labels: 0 under train")
        if not -1 <= self.threshold <= 1:
            raise BadInput("a threshold of likeness is a cosine, between -1 and 1", "threshold")
