"""Kernels that are known by what they compute: recognised by running them with numbers, then written anew."""
