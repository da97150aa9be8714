"""OpenCL devices through pyopencl: GPUs, and CPUs through PoCL or a vendor's driver."""
