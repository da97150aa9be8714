"""A PyTorch operator as a folder to drop into a project; two of its files are copied as they are."""
