"""Fused ops as loops and simpler ops, for the derivatives that no op has."""
