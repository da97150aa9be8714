"""Policies in simulated worlds of attempts."""
