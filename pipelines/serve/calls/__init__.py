"""Calls of found tools: forwarded to MCP servers and HTTP APIs, limited by key, logged."""
