"""Measures shipped choices again, on this machine now."""
