"""The HTTP and MCP server."""
