"""Ops that only rewrites make: fused ops, transfers, and the base of libraries' ops."""
