"""What each operator of a graph becomes: maps, reductions, windows, and reads at places that tensors name."""
