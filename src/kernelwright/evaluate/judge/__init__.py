"""The referee: the only process that runs the reference and says what is right."""
