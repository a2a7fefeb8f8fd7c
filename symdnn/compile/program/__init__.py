"""The order of a graph's nodes, their segments, and what is computed once."""
