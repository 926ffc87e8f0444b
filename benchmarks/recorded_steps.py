"""Compare recorded decoding steps with `generate` of transformers: the same model and prompts, in turn (CUDA).

python benchmarks/recorded_steps.py [--model bundled:smollm2-135m] [--rows 512 2048] [--tokens 128] [--rounds 2]

First both answer greedily in single precision, and equal answers are counted; then they sample in half precision,
`--rounds` times in turn, and the best round counts. Prints answers per second of both and their ratio.
"""

from __future__ import annotations

import time

import torch
from harness import make_parser, write_json

from pipelines.models import find_model
from pipelines.runs import environment
from rewrite.backends import in_process
from rewrite.backends.in_process import TransformersBackend
from rewrite.settings import Sampling, TransformersSettings
from rewrite.types import Answer, Prompt

BATCH_SIZE = 1024
NEEDS = ("a trip", "a cake", "fishing with children", "a garden")
record = in_process.can_record


def prompts(rows: int) -> list[Prompt]:
    """Prompts, the first 128 of them distinct."""
    distinct: list[Prompt] = [
        [{"role": "user", "content": f"Name {count} things that one needs for {need}."}]
        for count in range(2, 34)
        for need in NEEDS
    ]
    return (distinct * (rows // len(distinct) + 1))[:rows]


def timed(
    backend: TransformersBackend, rows: int, sampling: Sampling, recorded: bool
) -> tuple[list[list[Answer]], float]:
    """Return the answers and the seconds they took."""
    in_process.can_record = record if recorded else lambda model: False
    torch.cuda.synchronize()
    started = time.perf_counter()
    answers = backend.generate(prompts(rows), sampling)
    torch.cuda.synchronize()
    return answers, time.perf_counter() - started


def main() -> None:
    """Measure both in turn, print."""
    parser = make_parser(__doc__)
    parser.add_argument("--model", default="bundled:smollm2-135m")
    parser.add_argument("--rows", type=int, nargs="+", default=[512, 2048])
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("no CUDA device: steps are recorded on CUDA only")
    model = find_model(options.model)
    exact = TransformersBackend(TransformersSettings(batch_size=BATCH_SIZE, dtype="float32"), model)
    greedy = Sampling(max_tokens=options.tokens)
    (plain, _), (fast, _) = (timed(exact, 128, greedy, recorded) for recorded in (False, True))
    same = sum(one == other for one, other in zip(plain, fast, strict=True))
    print(f"greedy, float32: {same} of {len(plain)} answers are the same", flush=True)
    facts: dict[str, object] = {"same_of_128": same, "environment": environment()}
    half = TransformersBackend(TransformersSettings(batch_size=BATCH_SIZE), model)
    drawn = Sampling(temperature=1.0, max_tokens=options.tokens)
    for rows in options.rows:
        best = {True: 0.0, False: 0.0}
        for _ in range(options.rounds):
            for recorded in (False, True):
                best[recorded] = max(best[recorded], rows / timed(half, rows, drawn, recorded)[1])
        ratio = best[True] / best[False]
        print(f"{rows} answers: {best[True]:.0f} per second, generate {best[False]:.0f}: {ratio:.2f} times", flush=True)
        facts[str(rows)] = {"recorded": best[True], "generate": best[False], "ratio": ratio}
    write_json(options.out, facts)


if __name__ == "__main__":
    main()
