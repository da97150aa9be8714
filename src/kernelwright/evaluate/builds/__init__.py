"""Builds in parallel processes, off the device, out of a cache; what programs keep from launch to launch."""
