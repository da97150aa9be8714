"""Triton files as people have them to problems: a worker watches one call."""
