"""Plain kernels in C as kernels in Triton: what one thread does, for a block of them at once."""
