"""The auto-tuning community's formats: T1 input, T4 results."""
