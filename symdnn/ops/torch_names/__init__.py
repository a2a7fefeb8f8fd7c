"""Functions and methods of PyTorch's tensors, composed of ops."""
