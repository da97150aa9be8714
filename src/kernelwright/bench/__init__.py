"""Measures Kernelwright itself: space construction, searchers, overhead."""
