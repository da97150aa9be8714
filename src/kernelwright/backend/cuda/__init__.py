"""NVIDIA devices: CUDA C++ through NVRTC or nvcc, launched through the driver API."""
