"""The CPU target: kernels compiled by LLVM, oneDNN's, and NumPy's where neither is there."""
