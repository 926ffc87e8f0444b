"""Rewriter: a template and a model behind it. Utterances in, rewrites out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from rewrite.backends.base import Backend, Room
from rewrite.settings import Sampling
from rewrite.template import Template
from rewrite.types import Ask, Prompt, Rewrite


@dataclass(frozen=True, slots=True)
class Rewriter:
    """Turns what a user said into what an index understands."""

    template: Template
    backend: Backend
    sampling: Sampling = field(default_factory=Sampling)

    def rewrite(self, asks: Sequence[Ask], show_progress: bool = False) -> list[Rewrite]:
        """One rewrite an ask: its first answer."""
        return [rewrites[0] for rewrites in self.samples(asks, replace(self.sampling, answers=1), show_progress)]

    def samples(
        self, asks: Sequence[Ask], sampling: Sampling | None = None, show_progress: bool = False
    ) -> list[list[Rewrite]]:
        """All answers to every ask, each read by the template."""
        sampling = sampling or self.sampling
        fitted = fit(self.template, self.backend, asks, sampling.most_tokens)
        asked = [place for place, (prompt, _) in enumerate(fitted) if prompt is not None]
        prompts = [prompt for prompt, _ in fitted if prompt is not None]
        answers = self.backend.generate(prompts, sampling, show_progress) if prompts else []
        found = [[Rewrite((), "too-long", cut=cut)] * sampling.answers for _, cut in fitted]
        for place, written in zip(asked, answers, strict=True):
            cut = fitted[place][1]
            if written:  # else the backend found the prompt too long after all
                found[place] = [replace(self.template.parse(answer), cut=cut) for answer in written]
        return found


def fit(template: Template, backend: Room, asks: Sequence[Ask], most_tokens: int) -> list[tuple[Prompt | None, int]]:
    """For every ask its prompt and how many candidates were cut so that it fits; None where even none of them fits.

    Candidates go from the back. The utterance is never cut: a query that is too long by itself is not asked.
    """
    prompts: list[Prompt | None] = [template.render(ask) for ask in asks]
    cuts = [0] * len(asks)
    shown = [min(template.candidates, len(ask.candidates)) for ask in asks]
    room = None if backend.context is None else backend.context - most_tokens
    # A server is not asked to count what it will refuse by itself; only candidates can be cut.
    waiting = [place for place in range(len(asks)) if room is not None and (shown[place] or not backend.tells_too_long)]
    while waiting:
        lengths = backend.count([prompt for place in waiting if (prompt := prompts[place]) is not None])
        if lengths is None or room is None:
            break
        too_long = [place for place, length in zip(waiting, lengths, strict=True) if length > room]
        waiting = []
        for place in too_long:
            if cuts[place] == shown[place]:
                prompts[place] = None
                continue
            cuts[place] += 1
            kept = asks[place].candidates[: shown[place] - cuts[place]]
            prompts[place] = template.render(replace(asks[place], candidates=kept))
            waiting.append(place)
    return list(zip(prompts, cuts, strict=True))
