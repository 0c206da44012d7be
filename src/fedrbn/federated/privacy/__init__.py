"""Differential privacy of what clients send."""
