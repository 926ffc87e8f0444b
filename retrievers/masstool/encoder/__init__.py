"""Joint tuning of MassTool's encoder."""
