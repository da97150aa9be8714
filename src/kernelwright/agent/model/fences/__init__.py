"""Fences for model-written text in languages other than C: what they let through is all that may be built."""
