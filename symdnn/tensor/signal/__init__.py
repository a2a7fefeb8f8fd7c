"""Signal processing: pooling and the convolution of stacks of images."""

from symdnn.tensor.signal import conv, pool

__all__ = ["conv", "pool"]
