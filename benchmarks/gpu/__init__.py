"""symdnn's record on a GPU, beside PyTorch and JAX; see ``benchmarks/README.md``."""
