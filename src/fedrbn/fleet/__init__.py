"""Devices: what they can do, and which duty each of them can afford."""
