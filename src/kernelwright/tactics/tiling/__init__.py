"""What tiled kernels share: index space, limits, body as a function, text to fill in."""
