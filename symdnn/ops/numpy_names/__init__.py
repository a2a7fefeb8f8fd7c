"""NumPy's functions, composed of ops."""
