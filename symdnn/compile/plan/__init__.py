"""A segment for concrete shapes: kernels, memory, bound launches."""
