"""NumPy kernels: what runs where nothing is compiled."""
