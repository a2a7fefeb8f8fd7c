"""NumPy kernels, for ops without compiled code."""
