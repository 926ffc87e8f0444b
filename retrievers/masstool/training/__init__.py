"""Training of MassTool: encoder, heads, calibration on dev."""
