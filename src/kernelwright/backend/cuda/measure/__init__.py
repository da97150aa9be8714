"""Kernel times, hardware counters, clocks and power of an NVIDIA device."""
