"""Rewrites of kernels: each tactic says when it applies, what it changes, and what that should gain."""
