"""Where the repository's folders are."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
SUPPORT = Path(__file__).parent
