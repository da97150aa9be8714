"""A whole run again, offline, from its record."""
