"""Which well-known shape a kernel has: a map, a reduction, a transpose, a stencil, a contraction."""
