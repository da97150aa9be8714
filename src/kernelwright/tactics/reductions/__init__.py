"""Blocks that join values: shuffles, vectors, several values a thread, several blocks in turn."""
