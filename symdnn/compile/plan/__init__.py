"""Plans of segments for concrete shapes: kernels, memory, bound launches."""
