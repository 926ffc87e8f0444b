"""Load models with errors in one sentence."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from safetensors import SafetensorError

from retrievers.errors import ModelMissing
from retrievers.out_of_memory import report_out_of_memory

T = TypeVar("T")


def load_safely(folder: Path, load: Callable[[], T]) -> T:
    """The result of `load`; a folder that holds no such model is named."""
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    before = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    try:
        with report_out_of_memory(folder):
            return load()
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        reason = str(error).split("\n")[0]
        raise ModelMissing(f"the model in {folder} cannot be loaded ({reason}); is it a whole model folder?") from error
    finally:
        transformers_logging.set_verbosity(before)
