"""What tests start ends with them."""

from __future__ import annotations

import subprocess
import sys

import psutil
import pytest
from killing import started
from waiting import until

PARENT = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(child.pid, flush=True)
time.sleep(600)
"""


def test_a_test_that_fails_leaves_no_process_behind() -> None:
    pids: list[int] = []

    def fails() -> None:
        with started([sys.executable, "-c", PARENT], stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            pids.extend([process.pid, int(process.stdout.readline())])
            assert all(map(psutil.pid_exists, pids))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    until(lambda: not any(map(psutil.pid_exists, pids)))
