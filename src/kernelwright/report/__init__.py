"""Reads runs and explains them; never evaluates."""
