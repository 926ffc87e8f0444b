"""Everything end to end: commands, configs, data, search. Composes the rooms; nobody imports it."""
