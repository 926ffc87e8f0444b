"""The live catalogue behind the server."""
