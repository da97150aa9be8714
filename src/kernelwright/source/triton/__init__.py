"""Triton files, read as Python syntax: nothing of them is imported or run."""
