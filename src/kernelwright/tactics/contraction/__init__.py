"""Contractions in tiles, through shared memory or registers."""
