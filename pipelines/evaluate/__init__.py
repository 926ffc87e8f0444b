"""Evaluation: systems x metrics, significance, published figures."""
