"""Theano's types of lists and slices."""
