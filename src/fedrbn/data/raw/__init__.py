"""Readers of data sets in their published formats, one format per file.

Downloads are not trusted: nothing is unpickled, nothing is unpacked to disk, sizes are limited while reading, and any
problem with a file raises a ValueError that says what to do.
"""
