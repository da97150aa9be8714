"""Rows: shared by threads, kept in registers, read once, split over blocks, in groups."""
