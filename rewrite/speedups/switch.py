"""The one off-switch of all speedups: TOOLREWRITE_SPEEDUPS=off runs plain PyTorch, transformers and TRL instead."""

from __future__ import annotations

import os


def speedups_enabled() -> bool:
    """False where the environment variable switches all speedups off."""
    return os.environ.get("TOOLREWRITE_SPEEDUPS", "on").lower() not in ("off", "0", "false")
