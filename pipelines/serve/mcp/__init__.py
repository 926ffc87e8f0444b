"""The catalogue as an MCP server."""
