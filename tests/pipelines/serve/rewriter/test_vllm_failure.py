"""The cause of vLLM's end, found in logs that it wrote (version 0.32, shortened)."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipelines.serve.rewriter.vllm_failure import Failure, find_error, read_failure

WRAPPED = """\
(APIServer pid=7) WARNING 11-18 05:36:33 [system_utils.py:255] Can cause errors like `OSError: [Errno 24] Too many`
(VllmWorker-0 pid=9) ERROR 11-18 05:37:00 [multiproc_executor.py:953] WorkerProc failed to start.
(VllmWorker-0 pid=9) ERROR 11-18 05:37:00 [multiproc_executor.py:953] Traceback (most recent call last):
(VllmWorker-0 pid=9) ERROR 11-18 05:37:00 [multiproc_executor.py:953]     raise ValueError(
(VllmWorker-0 pid=9) ERROR 11-18 05:37:00 [multiproc_executor.py:953] {error}
(EngineCore pid=8) ERROR 11-18 05:37:02 [core.py:1510] Exception: WorkerProc initialization failed due to an exception \
in a background process. See stack trace for root cause.
Process EngineCore:
Exception: WorkerProc initialization failed due to an exception in a background process. See stack trace for root cause.
Traceback (most recent call last):
    raise RuntimeError(
RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {{}}
"""
INVALID = """\
Traceback (most recent call last):
pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig
  Value error, User-specified max_model_len (100000) is greater than the derived max_model_len [type=value_error]
    For further information visit https://errors.pydantic.dev/2.12/v/value_error
"""
USAGE = """\
usage: api_server.py [-h] [--headless] [--api-server-count API_SERVER_COUNT]
api_server.py: error: unrecognized arguments: --no-such-option
"""


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ("ValueError: Available memory on node 0 (20.8/23.5 GiB) on startup is less than desired", "memory"),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", "memory"),
        ("RuntimeError: [enforce fail] DefaultCPUAllocator: not enough memory: out of memory", "memory"),
        ("ValueError: gpu_memory_utilization must be at most 1, got 3", "permanent"),
        ("safetensors_rust.SafetensorError: Error while deserializing header: incomplete metadata", "permanent"),
        ("RuntimeError: CUDA error: unspecified launch failure", "other"),
        ("ConnectionResetError", "other"),
    ],
)
def test_the_cause_is_below_its_wrappers(error: str, kind: str) -> None:
    failure = find_error(WRAPPED.format(error=error))
    assert failure is not None
    assert (failure.permanent, failure.memory) == (kind == "permanent", kind == "memory")
    assert failure.cause.startswith(error.rpartition(":")[0].rpartition(".")[2][:12])
    assert failure.cause.rstrip(": ").endswith(error[-10:])


def test_an_invalid_value_and_an_unknown_option_stay_wrong() -> None:
    failure = find_error(INVALID)
    assert failure is not None
    assert failure.permanent
    assert failure.cause.startswith("ValidationError: Value error, User-specified max_model_len (100000)")
    assert find_error(USAGE) == Failure("unrecognized arguments: --no-such-option", True)


def test_without_an_error_the_code_is_the_cause(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("(APIServer pid=7) INFO 11-18 05:36:33 [api_utils.py:347] started\n")
    assert read_failure(log, 3) == Failure("it ended with code 3")
    log.write_bytes(b"\xff" * 1_000_000 + b"\nValueError: " + b"long " * 1000)
    assert read_failure(log, 1).permanent
    assert len(read_failure(log, 1).cause) < 500


def test_a_kill_is_the_cause_whatever_was_logged_before(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("ImportError: no module named flash_attn\nINFO: falling back\n")
    for code in (137, -9):
        failure = read_failure(log, code)
        assert "memory runs out" in failure.cause
        assert (failure.permanent, failure.memory) == (False, True)


def test_a_log_that_vanished_leaves_the_code(tmp_path: Path) -> None:
    assert read_failure(tmp_path / "nothing", 3) == Failure("it ended with code 3")
