"""The benchmark runner reads the scripts' JSON and writes one table; the GPU jobs name files that exist."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from paths import ROOT


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> object:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import run

    yield run
    for name in ("run", "harness"):
        sys.modules.pop(name, None)


def test_ratios_are_taken_round_by_round(bench: object) -> None:
    rounds = {"gateway": {"per_second_by_round": [4.0, 9.0, 6.0]}, "bare": {"per_second_by_round": [2.0, 3.0, 3.0]}}
    [ratio] = bench.loads({"cores": 2, "raw, 1 clients": rounds})  # type: ignore[attr-defined]
    assert (ratio.median, ratio.min, ratio.max, ratio.rounds) == (2.0, 2.0, 3.0, 3)
    [ratio] = bench.BENCHES["batch"].read({"seconds": {"rewrite-batch": [10.0, 8.0], "vllm run-batch": [20.0, 12.0]}})  # type: ignore[attr-defined]
    assert (ratio.peer, ratio.median, ratio.max) == ("vllm run-batch", 1.75, 2.0)
    rows = [{"what": "ratio: naive reward / ours", "median": 3.0, "min": 2.0, "max": 4.0, "n": 4}]
    [ratio] = bench.BENCHES["reward"].read({"figures": rows})  # type: ignore[attr-defined]
    assert (ratio.peer, ratio.median) == ("naive per-query reward", 3.0)


def test_what_is_not_run_or_fails_is_a_row_that_says_so(
    bench: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    scripts = tmp_path / "scripts"
    scripts.mkdir()
    (scripts / "good.py").write_text(
        "import json, sys\nopen(sys.argv[-1], 'w').write(json.dumps({'seconds': {'ours': [1.0], 'plain TRL': [3.0]}}))"
    )
    (scripts / "bad.py").write_text("raise SystemExit(3)")
    made, read = bench.Benchmark, bench.BENCHES["sft"].read  # type: ignore[attr-defined]
    monkeypatch.setattr(bench, "HERE", scripts)
    benches = {
        "good": made("good.py", [], [], read),
        "bad": made("bad.py", [], [], read),
        "absent": made("good.py", [], [], read, "no_such_library"),
        "later": made("good.py", None, [], read),
        "unmade": made("good.py", [], [], read, needs=str(tmp_path / "nothing")),
    }
    monkeypatch.setattr(bench, "BENCHES", benches)
    monkeypatch.setattr(sys, "argv", ["run.py", "--out", str(tmp_path / "out")])
    assert bench.main() == 1  # type: ignore[attr-defined]
    facts = json.loads((tmp_path / "out" / "table.json").read_text())
    assert [row["median"] for row in facts["ratios"]] == [3.0]
    assert facts["missing"] == {
        "bad": "FAILED with exit code 3",
        "absent": "no_such_library is not installed",
        "later": "in the full run only",
        "unmade": f"no {tmp_path / 'nothing'}: run `make demo-train` first",
    }
    text = (tmp_path / "out" / "table.md").read_text()
    assert "| plain TRL | fine-tuning, seconds | **3.00** | 3.00 - 3.00 | 1 |" in text
    assert "rank-bm25" in facts["versions"]
    assert text in capsys.readouterr().out


def test_every_script_is_there_and_takes_what_it_is_given(bench: object) -> None:
    harness = (ROOT / "benchmarks" / "harness.py").read_text()
    for benchmark in bench.BENCHES.values():  # type: ignore[attr-defined]
        text = (ROOT / "benchmarks" / benchmark.script).read_text() + harness
        flags = [word for word in [*(benchmark.small or []), *benchmark.full, "--out"] if word.startswith("--")]
        assert all(f'"{flag}"' in text for flag in flags), benchmark.script


def test_gpu_jobs_name_files_that_exist() -> None:
    make = ["make", "--no-print-directory", "-f", "benchmarks/gpu.mk"]
    names = subprocess.run(make, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split()
    commands = subprocess.run([*make, "-n", *names], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    files = [word for word in commands.split() if word.startswith(("configs/", "benchmarks/"))]
    assert len(names) > 80
    assert not [file for file in files if not (ROOT / file).is_file()]
