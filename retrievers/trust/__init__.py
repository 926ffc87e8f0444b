"""Which tools to trust: tiers, screening, hubs."""
