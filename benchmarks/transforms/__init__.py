"""What transformations of functions cost, beside those of JAX and PyTorch."""
