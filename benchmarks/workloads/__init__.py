"""The workloads, and the programs that run them in PyTorch and JAX; see README.md."""
