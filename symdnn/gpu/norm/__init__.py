"""Normalisation of batches, layers and groups: kernels in CUDA C, and their gradients."""
