"""Discrete Fourier transforms, their public functions, and convolution by them."""
