"""Blocks of kernels carried out with numbers: values, arithmetic, conditions, statements."""
