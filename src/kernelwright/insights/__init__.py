"""Explains finished runs, and never runs one: summaries, spending, attempts, forecasts."""
