"""Stencils: several points a thread, several time steps a launch."""
