"""Accuracy under attack: what is asked of every client, whether the answers can be trusted, and tables of them."""
