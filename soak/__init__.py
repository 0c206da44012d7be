"""Breaks training on purpose, many times, and writes down what happened: `make soak`."""
