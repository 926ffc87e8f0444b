"""Trust in tools: tiers of providers, screening of new tools, hubs."""
