"""`optimize` with several problems: its words, its live table, what it prints."""
