"""Transpositions and permutations through tiles."""
