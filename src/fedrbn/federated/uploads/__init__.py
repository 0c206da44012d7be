"""Checks uploads and collects the uploads of a round."""
