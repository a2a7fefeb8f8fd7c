"""Compiled GEMM: tiles in registers, panels in the L2 cache, threads."""
