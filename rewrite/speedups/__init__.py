"""Faster generation and scoring; each can be switched off."""
