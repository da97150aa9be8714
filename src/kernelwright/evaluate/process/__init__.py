"""Worker processes: where everything that may crash, hang or lie is run."""
