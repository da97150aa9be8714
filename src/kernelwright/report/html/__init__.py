"""How pages are written, and those parts of them that span several searches or runs."""
