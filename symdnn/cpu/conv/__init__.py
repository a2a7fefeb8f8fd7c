"""Compiled convolutions: Winograd's algorithm, depthwise."""
