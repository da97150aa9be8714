"""Searchers on recorded spaces: scores with intervals, beside other tuners."""
