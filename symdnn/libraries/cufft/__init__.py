"""Fourier transforms in the form that cuFFT takes."""
