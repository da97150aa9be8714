"""What is done with the text of a file before and after it is understood: host code, instances, wider types."""
