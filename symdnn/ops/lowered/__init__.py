"""Nodes late in a program: fused ones, transfers, and the base of what a library runs."""
