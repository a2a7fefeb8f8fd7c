"""Functions of NumPy and PyTorch, composed of ops."""
