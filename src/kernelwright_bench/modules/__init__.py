"""A module's exported answer beside PyTorch: eager, compiled, and compiled with max-autotune."""
