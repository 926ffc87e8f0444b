"""MCP: server, client, following remote servers."""
