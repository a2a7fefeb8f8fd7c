"""Attention and transformers with PyTorch's arguments and weights, and a cache for decoding."""
