"""Readers of data sets as their owners publish them, one format per file.

Downloads are not trusted: nothing is unpickled, nothing is unpacked to disk, sizes are bounded while reading, and
whatever is wrong with a file ends in a ValueError that says what to do.
"""
