"""Several problems under one budget: each has a run of its own, and the next slice goes where it should gain most."""
