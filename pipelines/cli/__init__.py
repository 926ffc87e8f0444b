"""Commands: parsers, one file of handlers per command, exit codes."""
