"""Log-softmax by SciPy."""
