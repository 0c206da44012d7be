"""Breaks training on purpose, many times, and records what happened: `make soak`."""
