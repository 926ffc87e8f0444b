"""One catalogue for many gateways: PostgreSQL holds the truth, every gateway follows it in memory."""
