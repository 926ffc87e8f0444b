"""Made-up utterances for a catalogue that has no labels."""
