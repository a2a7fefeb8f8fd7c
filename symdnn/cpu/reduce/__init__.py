"""Compiled reductions, softmax over any axis, statistics of batch normalisation."""
