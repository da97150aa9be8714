"""What a CPU device's kernels share with their worker process: memory, stacks, system calls. Linux only."""
