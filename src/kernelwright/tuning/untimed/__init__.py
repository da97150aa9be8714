"""A template's configurations checked where nothing can be timed."""
