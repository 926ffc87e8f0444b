"""Training of MassTool's heads."""
