"""What a kernel does, from its source alone: values, accesses, loops, reductions."""
