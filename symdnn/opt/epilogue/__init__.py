"""Epilogues: a bias, an addend, an activation function in the kernel of a convolution or GEMM."""
