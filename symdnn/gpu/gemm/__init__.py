"""GEMM by cuBLASLt."""
