"""C, CUDA and OpenCL sources: tokens, preprocessing, typed syntax trees, edits."""
