"""Training of rewriters: targets, SFT, alignment, utterances."""
