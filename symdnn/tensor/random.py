"""Random variables: streams, and Theano's names for them."""

from typing import TYPE_CHECKING as _CHECKED

from symdnn.graph.names.elsewhere import refusing as _refusing
from symdnn.ops.random.random_stream import MRG_RandomStreams, RandomStream, RandomStreams

__all__ = ["MRG_RandomStreams", "RandomStream", "RandomStreams"]

if not _CHECKED:  # a checker of types would believe that every name exists
    __getattr__ = _refusing(__name__, "RANDOM")
