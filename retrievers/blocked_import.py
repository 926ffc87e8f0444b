"""Imports a library as if another one were not installed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def hidden(name: str) -> Iterator[None]:
    """Within, `import name` finds nothing; one that the program has imported itself stays as it is."""
    modules: dict[str, Any] = sys.modules
    if name in modules:
        yield
        return
    modules[name] = None  # Python's own way to say: not to be imported
    try:
        yield
    finally:
        del modules[name]
