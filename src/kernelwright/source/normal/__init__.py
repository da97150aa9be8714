"""Kernels in the one style that everything else reads: `normal_form`."""
