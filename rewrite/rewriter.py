"""Rewriter: a template and a model behind it. Utterances in, rewrites out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from rewrite.backends.base import Backend, Room
from rewrite.errors import Unfit
from rewrite.settings import Sampling
from rewrite.template import Template
from rewrite.types import Answer, Ask, Prompt, Rewrite
from rewrite.votes import one_answer


@dataclass(frozen=True, slots=True)
class Rewriter:
    """Turns what a user said into what an index understands."""

    template: Template
    backend: Backend
    sampling: Sampling = field(default_factory=Sampling)

    def rewrite(self, asks: Sequence[Ask], show_progress: bool = False) -> list[Rewrite]:
        """One rewrite an ask; where a query gets several answers, of the lines that most of them have."""
        return [
            self._read(answers, cut) if answers else Rewrite((), "too-long", cut=cut)
            for answers, cut in self._answers(asks, self.sampling, show_progress)
        ]

    def _read(self, answers: Sequence[Answer], cut: int) -> Rewrite:
        found = self.template.parse(one_answer(self.template, answers, self.sampling))
        return replace(found, cut=cut, finished=all(answer.finished for answer in answers))

    def samples(
        self, asks: Sequence[Ask], sampling: Sampling | None = None, show_progress: bool = False
    ) -> list[list[Rewrite]]:
        """All answers to every ask, each read by the template."""
        sampling = sampling or self.sampling
        return [
            [replace(self.template.parse(answer), cut=cut) for answer in answers]
            or [Rewrite((), "too-long", cut=cut)] * sampling.answers
            for answers, cut in self._answers(asks, sampling, show_progress)
        ]

    def _answers(
        self, asks: Sequence[Ask], sampling: Sampling, show_progress: bool
    ) -> list[tuple[Sequence[Answer], int]]:
        """The answers to every ask, none where it is too long, and how many candidates were cut so that it fits."""
        context = self.backend.context
        if context is not None and sampling.most_tokens >= context:  # else every query would be one that is too long
            raise Unfit(
                f"answers of {sampling.most_tokens} tokens leave no room for a prompt in the model's {context}; "
                "set a smaller most_tokens (answer_tokens where dev is judged)"
            )
        fitted = fit(self.template, self.backend, asks, sampling.most_tokens)
        found: list[tuple[Sequence[Answer], int]] = [((), cut) for _, cut in fitted]
        waiting = {place: (prompt, cut) for place, (prompt, cut) in enumerate(fitted) if prompt is not None}
        while waiting:
            answers = self.backend.generate([prompt for prompt, _ in waiting.values()], sampling, show_progress)
            again = {}
            for (place, (_, cut)), written in zip(waiting.items(), answers, strict=True):
                if written:
                    found[place] = (written, cut)
                elif shorter := halved(self.template, asks[place], cut):
                    again[place] = shorter
            waiting = again
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


def halved(template: Template, ask: Ask, cut: int) -> tuple[Prompt, int] | None:
    """For a prompt that only the backend found too long: the next one to try, with half of the candidates that it still
    showed, and how many are cut by then. None where it showed none: the utterance is too long by itself."""
    shown = min(template.candidates, len(ask.candidates)) - cut
    if shown <= 0:
        return None
    kept = ask.candidates[: shown // 2]
    return template.render(replace(ask, candidates=kept)), cut + shown - len(kept)
