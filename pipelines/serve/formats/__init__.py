"""Tool definitions in the formats of LLM clients."""
