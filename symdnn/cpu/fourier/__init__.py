"""Fourier transforms by pocketfft."""
