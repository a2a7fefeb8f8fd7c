"""Compiled convolutions: Winograd, depthwise."""
