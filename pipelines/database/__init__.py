"""Shared catalogue in PostgreSQL: the database holds it, every gateway keeps a replica in memory."""
