"""Rewrites of a function's graph, as values in ordered phases."""
