"""Other tuners behind the seams of ours, for the comparison: Kernel Tuner, Optuna."""
