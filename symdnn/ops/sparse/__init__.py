"""Sparse matrices in the compressed formats: vectors in the graph, a class around them outside."""
