"""Attacks on the evaluator, and honest kernels beside them: drawn at random, run on a device, counted."""
