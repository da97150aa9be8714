"""What a problem needs to know of a plain kernel, from its file and its by-value arguments alone."""
