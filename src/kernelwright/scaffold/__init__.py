"""A problem folder from a kernel's source, with guesses that a person corrects."""
