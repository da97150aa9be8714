"""Triton kernels without a GPU: compiled for one, and run by Triton's interpreter."""
