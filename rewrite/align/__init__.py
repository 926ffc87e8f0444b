"""Alignment of a rewriter with what a frozen retriever finds: pairs, DPO, GRPO, RLOO, PPO, best of n."""
