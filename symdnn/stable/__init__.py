"""Stable forms: equal expressions that lose no digits, for values and for their gradients."""
