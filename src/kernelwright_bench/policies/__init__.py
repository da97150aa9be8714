"""Policies to compare with, and simulated worlds of attempts to compare them in."""
