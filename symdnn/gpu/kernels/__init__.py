"""CUDA kernels of our own, one family a module."""
