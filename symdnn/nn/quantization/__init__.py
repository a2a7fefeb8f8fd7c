"""Quantisation after training: ranges of values, and graphs in 8 bits."""
