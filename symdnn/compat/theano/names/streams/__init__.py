"""Streams of random numbers with the numbers of Theano."""
