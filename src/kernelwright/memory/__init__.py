"""What runs have learnt, kept for later runs: measured claims with their evidence, in a local library."""
