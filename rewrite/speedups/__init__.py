"""Faster generation and training with the same results; TOOLREWRITE_SPEEDUPS=off turns all of it off."""
