"""Everything end to end: commands, configs, data, search. Composes the other packages."""
