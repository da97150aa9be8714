"""Shows runs while they grow: the report, served to this machine's browser alone."""
