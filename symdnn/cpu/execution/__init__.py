"""Plans on a CPU: bound to kernels and memory, run step by step or as one generated function."""
