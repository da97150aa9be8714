"""The operator suite: tuned kernels beside what PyTorch and others took for the same operator."""
