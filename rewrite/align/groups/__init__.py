"""GRPO and RLOO on TRL."""
