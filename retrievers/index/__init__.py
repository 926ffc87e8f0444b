"""Index folders: `build`, `add`, `remove`, `confirm`, `calibrate` (writers), `Index` (reader), `verify`."""

from retrievers.index.reader import Index
from retrievers.index.verify import verify
from retrievers.index.writer import Change, add, build, build_like, calibrate, confirm, remove

__all__ = ["Change", "Index", "add", "build", "build_like", "calibrate", "confirm", "remove", "verify"]
