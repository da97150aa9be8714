"""PyTorch modules as programs: a graph from a worker process, lowered to launches of plain kernels."""
