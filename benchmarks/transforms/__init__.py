"""Transformations of programs, timed beside PyTorch and JAX."""
