"""What can be set of the codes. Stdlib only, so that reading a config costs nothing."""

from __future__ import annotations

from dataclasses import dataclass

from retrievers.errors import BadInput


@dataclass(frozen=True, slots=True)
class WeaveSettings:
    """How tools become codes: a residual-quantised autoencoder over the vectors of their documents."""

    levels: int = 3
    """Tokens of a tool's code."""
    codes: int = 64
    """Codes a level. levels x codes rows are added to the model; codes ** levels tools have room."""
    width: int = 64
    """Dimensions of the space that is quantised."""
    hidden: tuple[int, ...] = (256, 128)
    """Layers between the vectors and that space; the way back mirrors them."""
    collaboration: float = 1.0
    """How strongly tools that are used together are drawn together; 0: not at all."""
    uniform: bool = True
    """Spread the tools evenly over the codes of the last level (Sinkhorn); without it each takes the nearest."""
    epsilon: float = 0.01
    """Smaller: evener, and further from the nearest code."""
    iterations: int = 50
    """Of Sinkhorn."""
    commitment: float = 0.25
    """How strongly the encoder is held to the codes it chose."""
    steps: int = 2000
    batch_size: int = 2048
    """Tools a step; a catalogue that fits is taken whole."""
    learning_rate: float = 1e-3
    warmup: float = 0.2
    """The share of steps before the codes are placed: an autoencoder first, so that k-means has something to see."""
    seed: int = 0

    def __post_init__(self) -> None:
        if self.levels < 2 or self.codes < 2:
            raise BadInput("levels and codes must be at least 2")
        if min(self.width, self.steps, self.batch_size, self.iterations, *self.hidden, 1) < 1:
            raise BadInput("width, hidden, steps, batch_size and iterations must be at least 1")
        if min(self.collaboration, self.commitment, self.seed) < 0 or self.learning_rate <= 0:
            raise BadInput("collaboration, commitment and seed must not be negative, learning_rate must be positive")
        if not 0.003 <= self.epsilon <= 10 or not 0 <= self.warmup < 1:
            raise BadInput("epsilon lies between 0.003 and 10, warmup between 0 and 1")
