"""The session's own kernels: fills, inputs drawn anew, comparisons."""
