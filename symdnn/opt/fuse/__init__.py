"""Fusion of nodes into one kernel, and the placement of nodes and transfers."""
