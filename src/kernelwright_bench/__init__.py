"""Measures Kernelwright itself: searchers, policies, operators, spaces, its evaluator. In a checkout, in no wheel."""
