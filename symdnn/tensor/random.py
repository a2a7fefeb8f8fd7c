"""Random variables: streams, and Theano's names for them."""

from symdnn.ops.random.random_stream import MRG_RandomStreams, RandomStream, RandomStreams

__all__ = ["MRG_RandomStreams", "RandomStream", "RandomStreams"]
