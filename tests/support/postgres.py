"""A temporary PostgreSQL: Debian's binaries, an unprivileged user, a folder that is deleted afterwards."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

import psutil
import psycopg
from waiting import PATIENCE

BINARIES = max(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name), default=None)
SECRET = "quagga-5-secret"
"""The password; no log and no answer may hold it."""


class Postgres:
    """A server that can be killed and started again."""

    def __init__(self) -> None:
        assert BINARIES is not None
        self.folder = Path(tempfile.mkdtemp(prefix="pg-"))
        # PostgreSQL refuses to run as root.
        self._user = next(user for user in ("postgres", "nobody") if _known(user)) if os.geteuid() == 0 else None
        (self.folder / "password").write_text(SECRET)
        if self._user:
            for path in (self.folder, self.folder / "password"):
                shutil.chown(path, self._user)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        self._run("initdb", "-D", "data", "-U", "toolrewrite", "-A", "scram-sha-256", "--pwfile", "password", "-N")
        self.dsn = f"postgresql://toolrewrite:{SECRET}@127.0.0.1:{self.port}/postgres"
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        """Up, and ready to answer; after a kill once the last of the old processes has gone."""
        deadline = time.monotonic() + PATIENCE
        while True:
            if self._process is None or self._process.poll() is not None:
                options = ["-D", "data", "-p", str(self.port), "-k", "", "-h", "127.0.0.1", "-c", "max_connections=60"]
                self._process = subprocess.Popen(
                    [f"{BINARIES}/postgres", *options],
                    cwd=self.folder,
                    user=self._user,
                    stdout=subprocess.DEVNULL,
                    stderr=(self.folder / "log").open("ab"),
                )
            try:
                psycopg.connect(self.dsn, connect_timeout=10).close()
                return
            except psycopg.OperationalError:
                assert time.monotonic() < deadline, (self.folder / "log").read_text()
                time.sleep(0.05)

    def kill(self) -> None:
        """kill -9 of the server and of all its processes."""
        assert self._process is not None
        family = [psutil.Process(self._process.pid), *psutil.Process(self._process.pid).children(recursive=True)]
        for process in family:
            process.send_signal(signal.SIGKILL)
        self._process.wait()
        psutil.wait_procs(family[1:], timeout=60)

    def stop(self) -> None:
        """The end, and nothing left behind."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            self._process.wait(60)
        shutil.rmtree(self.folder, ignore_errors=True)

    def query(self, text: str, *values: object) -> list[tuple[object, ...]]:
        """Asks it directly."""
        with psycopg.connect(self.dsn, options="-c search_path=toolrewrite") as connection:
            cursor = connection.execute(text.encode(), values)
            return cursor.fetchall() if cursor.description else []

    def _run(self, program: str, *options: str) -> None:
        subprocess.run(
            [f"{BINARIES}/{program}", *options], cwd=self.folder, user=self._user, check=True, stdout=subprocess.DEVNULL
        )


def _known(user: str) -> bool:
    try:
        pwd.getpwnam(user)
    except KeyError:
        return False
    return True
