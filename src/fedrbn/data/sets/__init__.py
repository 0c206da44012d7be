"""The data sets that come with names of their own."""
