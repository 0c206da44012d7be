"""Accuracy under attack: how every client is evaluated, whether the results can be trusted, and tables of them."""
