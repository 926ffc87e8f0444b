"""Models that answer prompts: in this process by transformers or vLLM, or on a server."""

from rewrite.backends.base import Backend, make_backend

__all__ = ["Backend", "make_backend"]
