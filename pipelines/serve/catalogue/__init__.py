"""The live catalogue: index, changes, quarantine, imports, feedback."""
