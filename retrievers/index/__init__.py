"""Index folders: `build`, `add`, `remove`, `confirm` (writers), `Index` (reader), `verify`."""

from retrievers.index.reader import Index
from retrievers.index.verify import verify
from retrievers.index.writer import Change, add, build, confirm, remove, seal

__all__ = ["Change", "Index", "add", "build", "confirm", "remove", "seal", "verify"]
