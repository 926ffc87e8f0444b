"""Index builds: config, defaults, training summary."""
