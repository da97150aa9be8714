"""Translates results into files that others use: sources, headers, T4, T1."""
