"""Collectives of arrays in the memory of the host."""
