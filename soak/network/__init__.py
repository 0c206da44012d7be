"""A fleet on a bad network: every node in a network namespace of its own, behind a slow link and a bad proxy."""
