"""Settings of MassTool. Standard library only, so that reading a config imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Interval

from retrievers.errors import BadInput
from retrievers.settings import EncoderTraining, TrainingSource

Transfer = Literal["gating", "attention", "concatenation", "addition", "none"]
SceneView = Literal["mean", "propagated"]
Calibration = Literal["all", "threshold", "none"]


@dataclass(frozen=True, slots=True)
class Modules:
    """Parts of MassTool that can be switched off, and forms of the paper that can be switched on."""

    detection: bool = True
    """Learn whether a query needs a tool; without it there is no detector."""
    graph: bool = True
    """Propagate vectors between queries, tools and scenes along gold edges."""
    intent: bool = True
    """SUIM: similar training queries vote for their tools."""
    filter: bool = True
    """Ignore neighbours whose cosine is below `threshold`."""
    contrast: bool = True
    """Contrastive loss between the tool view and the scene view of a query."""
    transfer: Transfer = "gating"
    """AdaKT: how the detection tower's hidden state reaches retrieval."""
    score: Literal["sum", "joint"] = "sum"
    """sum: the query's text and all terms of its neighbours. joint: the transferred vectors alone (the paper)."""
    scene_view: SceneView = "mean"
    """A neighbour's scene: the mean of its tools, or that mean propagated over the query-scene graph (the paper)."""
    attention: Literal["encodings", "graph"] = "encodings"
    """SUIM attends to neighbours' encodings, or per view to their vectors in the graph (the paper)."""
    sink: bool = True
    """Attention may go to no neighbour. The paper, and `faithful`, always spend it."""
    mixing: bool = True
    """A learned matrix per view that separates tools with similar texts. The paper, and `faithful`, have none."""
    adapter: bool = True
    """A learned matrix on the query's vector. The paper, and `faithful`, have none."""
    learned_weights: bool = True
    """Learn the weights of the terms. The paper, and `faithful`, have 1."""
    words: bool = True
    """The detector reads the query's words beside its vector. The paper's, and that of `faithful`, do not."""


@dataclass(frozen=True, slots=True)
class AuxiliaryLosses:
    """Further losses and shortcuts of `mode: joint`."""

    scene_weight: Annotated[float, Ge(0)] = 0.0
    """Weight of ranking the gold set among all gold sets."""
    vote_weight: Annotated[float, Ge(0)] = 0.0
    """Weight of the similarity-weighted votes of the other training queries."""
    token_dropout: Annotated[float, Interval(ge=0, lt=1)] = 0.0
    """Share of a training query's tokens that is masked, drawn anew in each step."""
    documents_per_step: Annotated[int, Ge(0)] = 0
    """Documents encoded per step, the others keep their last vectors; 0: all. For catalogues within `candidates`."""
    ema_decay: Annotated[float, Interval(ge=0, lt=1)] = 0.0
    """Decay of a running mean of the weights; dev chooses between the mean and the last weights. 0: no mean."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderTuning(EncoderTraining):
    """Tuning of the encoder before the heads are trained."""

    mode: Literal["separate", "joint"] = "separate"
    """separate: for retrieval alone, as a dense index does it. joint: retrieval and detection in one loss."""
    auxiliary: AuxiliaryLosses = AuxiliaryLosses()

    def __post_init__(self) -> None:
        EncoderTraining.__post_init__(self)
        if self.mode == "separate" and self.auxiliary != AuxiliaryLosses():
            raise BadInput("auxiliary losses need `mode: joint`, got mode 'separate'", "auxiliary")


@dataclass(frozen=True, slots=True)
class MassToolTraining:
    """Training of MassTool."""

    data: tuple[TrainingSource, ...]
    """One data set; its tools are the index's."""
    labels: tuple[str, ...] = ()
    """Folders with labels/train.tsv: queries that need a tool and others. Empty: the data set's own, if it has any."""
    own_labels: Annotated[float, Ge(0)] = 1.0
    """Queries of the data set added as positive labels, per label that needs a tool."""
    joined_labels: Annotated[float, Ge(0)] = 0.25
    """Texts joined from two to six labels of one kind, per label, so that length does not give the label away."""
    protocol: Literal["official", "unseen-tools", "late-tools"] = "official"
    encoder: EncoderTuning | None = None
    """None: the encoder is not tuned."""
    epochs: Annotated[int, Ge(1)] = 60
    batch_size: Annotated[int, Ge(1)] = 512
    learning_rate: Annotated[float, Gt(0)] = 1e-3
    patience: Annotated[int, Ge(1)] = 8
    decay: bool = True
    """Let the learning rate fall linearly to 0; the authors keep it."""
    lists: Literal["all", "ten"] = "all"
    """Tools in the softmax: all that training queries need, with a temperature; ten as the authors, or `faithful`."""
    contrast_weight: Annotated[float, Ge(0)] = 0.04
    """Weight of the sum of both contrastive losses; the authors' mean of them has 0.04."""
    text_dropout: Annotated[float, Interval(ge=0, lt=1)] = 0.3
    """Share of training queries searched without their own text, so that neighbours learn to answer; not `faithful`."""
    detection_first: bool = True
    """Train the detection tower alone before the rest; the authors, and `faithful`, do not."""
    calibrate: Calibration | None = None
    """Dev chooses factors of all parts and the threshold of neighbours, that threshold, or none. None: all, or none if
    `faithful`."""
    detection_threshold: Annotated[float, Interval(ge=0, le=1)] | None = None
    """Probability from which on a query needs a tool; the authors have 0.5. None: chosen on dev."""
    unseen_tool_weight: Annotated[float, Interval(ge=0, le=1)] | None = None
    """Weight on dev of tools that no training query needs. None: their share of the catalogue."""
    folds: Annotated[int, Ge(0)] = 0
    """Further indexes in `INDEX.folds`, each trained without one part of the training queries: a rewriter learns from
    answers to queries that the retriever has not learned. 0: none, and no rewriter can be trained in front of it. An
    encoder that `model` names is the same in all folds: tune it by `encoder`."""
    fold_by: Literal["queries", "tools"] = "queries"
    """Parts of the training queries, or all queries of a part of the tools: for rewriters that will meet new tools."""
    left_out_fold: Annotated[int, Ge(0)] | None = None
    """The part that this index leaves out; `folds` sets it."""
    seed: Annotated[int, Ge(0)] = 0

    def __post_init__(self) -> None:
        if len(self.data) != 1:
            raise BadInput(
                f"MassTool trains on one data set, whose tools are indexed, got {len(self.data)} data sets", "data"
            )
        if self.folds == 1:
            raise BadInput("one fold leaves nothing to train on; set 2 or more, or 0", "folds")


@dataclass(frozen=True, slots=True)
class MassToolSettings:
    """Dense search with votes of similar queries, a query-tool graph and a detector."""

    kind: Literal["masstool"] = "masstool"
    model: str = "bundled:tools"
    """A Hugging Face id, a folder (such as a tuned encoder), or a bundled one."""
    train: MassToolTraining | None = None
    """None: nothing is trained; the index is a dense one that remembers confirmed queries."""
    modules: Modules = Modules()
    faithful: bool = False
    """Behave as the authors' code does (faithful.py). Needs own_labels: 0 and joined_labels: 0."""
    neighbours: Annotated[int, Interval(ge=1, le=100)] = 10
    threshold: Annotated[float, Interval(ge=-1, le=1)] = 0.82
    """Minimum cosine of a confirmed query, and of a neighbour unless dev chooses it (`train.calibrate`)."""
    batch_size: Annotated[int, Ge(1)] = 64
    ann_above: Annotated[int, Ge(1)] = 50_000
    """As in a dense index."""

    def __post_init__(self) -> None:
        if self.modules.score == "joint" and (self.modules.transfer == "none" or not self.modules.intent):
            raise BadInput("`score: joint` needs `intent: true` and a `transfer` other than none", "modules")
        if self.faithful and self.train is not None:
            for key in ("own_labels", "joined_labels"):
                if value := getattr(self.train, key):
                    raise BadInput(f"`faithful: true` adds no labels: set train.{key} to 0, got {value:g}", "faithful")
            if self.train.calibrate == "all":
                raise BadInput("`faithful: true` has no factors: set train.calibrate to threshold or none", "faithful")

    def calibration(self) -> Calibration:
        """Choices of dev once training is over."""
        assert self.train is not None
        return self.train.calibrate or ("none" if self.faithful else "all")
