"""A fleet on a bad network: every node in its own network namespace, behind a slow link and an unreliable proxy."""
