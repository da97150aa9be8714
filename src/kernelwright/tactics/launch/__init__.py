"""Launches in other forms: plain ones, blocks of any shape."""
