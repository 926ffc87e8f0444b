"""Rewriter: a template and the model behind it. Requests in, rewrites out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from rewrite.backends.base import Backend, TokenBudget
from rewrite.errors import RewriteError
from rewrite.settings import Sampling
from rewrite.template import Template
from rewrite.types import Answer, Prompt, Rewrite, RewriteRequest
from rewrite.votes import merge_answers


@dataclass(frozen=True, slots=True)
class Rewriter:
    """Turns utterances into queries that an index understands."""

    template: Template
    backend: Backend
    sampling: Sampling = field(default_factory=Sampling)

    def rewrite(self, requests: Sequence[RewriteRequest], show_progress: bool = False) -> list[Rewrite]:
        """One rewrite per request; several answers are merged into the lines that most of them share."""
        return [
            self._merge(answers, cut) if answers else Rewrite((), "too-long", cut=cut)
            for answers, cut in self._answer(requests, self.sampling, show_progress)
        ]

    def _merge(self, answers: Sequence[Answer], cut: int) -> Rewrite:
        rewrite = self.template.parse(merge_answers(self.template, answers, self.sampling))
        return replace(rewrite, cut=cut, finished=all(answer.finished for answer in answers))

    def sample(
        self, requests: Sequence[RewriteRequest], sampling: Sampling | None = None, show_progress: bool = False
    ) -> list[list[Rewrite]]:
        """All answers to every request, each parsed."""
        sampling = sampling or self.sampling
        return [
            [replace(self.template.parse(answer), cut=cut) for answer in answers]
            or [Rewrite((), "too-long", cut=cut)] * sampling.answers
            for answers, cut in self._answer(requests, sampling, show_progress)
        ]

    def _answer(
        self, requests: Sequence[RewriteRequest], sampling: Sampling, show_progress: bool
    ) -> list[tuple[Sequence[Answer], int]]:
        """Answers to every request, none where it is too long, and the candidates that were cut to make it fit."""
        context = self.backend.context
        if context is not None and sampling.max_tokens >= context:  # else every query would be too long
            raise RewriteError(
                f"answers of {sampling.max_tokens} tokens leave no room for a prompt in the model's {context}; "
                "set a smaller max_tokens (answer_tokens in an evaluation on dev)"
            )
        fitted = fit_prompts(self.template, self.backend, requests, sampling.max_tokens)
        results: list[tuple[Sequence[Answer], int]] = [((), cut) for _, cut in fitted]
        pending = {index: (prompt, cut) for index, (prompt, cut) in enumerate(fitted) if prompt is not None}
        while pending:
            answers = self.backend.generate([prompt for prompt, _ in pending.values()], sampling, show_progress)
            too_long = {}
            for (index, (_, cut)), answered in zip(pending.items(), answers, strict=True):
                if answered:
                    results[index] = (answered, cut)
                elif shorter := halve_candidates(self.template, requests[index], cut):
                    too_long[index] = shorter
            pending = too_long
        return results


def fit_prompts(
    template: Template, backend: TokenBudget, requests: Sequence[RewriteRequest], max_tokens: int
) -> list[tuple[Prompt | None, int]]:
    """Each request's prompt and the number of candidates cut to make it fit; None where it does not fit without any.

    Candidates are cut from the end. The utterance is never cut.
    """
    prompts: list[Prompt | None] = [template.render(request) for request in requests]
    cuts = [0] * len(requests)
    shown = [min(template.candidates, len(request.candidates)) for request in requests]
    budget = None if backend.context is None else backend.context - max_tokens
    # A backend that rejects long prompts need not count those without candidates: nothing could be cut.
    counted = [] if budget is None else range(len(requests))
    pending = [index for index in counted if shown[index] or not backend.rejects_long_prompts]
    while pending:
        lengths = backend.count([prompt for index in pending if (prompt := prompts[index]) is not None])
        if lengths is None or budget is None:
            break
        too_long = [index for index, length in zip(pending, lengths, strict=True) if length > budget]
        pending = []
        for index in too_long:
            if cuts[index] == shown[index]:
                prompts[index] = None
                continue
            cuts[index] += 1
            kept = requests[index].candidates[: shown[index] - cuts[index]]
            prompts[index] = template.render(replace(requests[index], candidates=kept))
            pending.append(index)
    return list(zip(prompts, cuts, strict=True))


def halve_candidates(template: Template, request: RewriteRequest, cut: int) -> tuple[Prompt, int] | None:
    """The next prompt to try for one that only the backend found too long, with half of its candidates, and how many
    are cut then. None where it showed none: the utterance itself is too long."""
    shown = min(template.candidates, len(request.candidates)) - cut
    if shown <= 0:
        return None
    kept = request.candidates[: shown // 2]
    return template.render(replace(request, candidates=kept)), cut + shown - len(kept)
