"""Source analysis: what a kernel file declares."""
