"""Signal processing: pooling, the convolution of stacks of images, convolutions by transforms."""

from symdnn.ops.fourier.convolve import fftconvolve, oaconvolve
from symdnn.tensor.signal import conv, pool

__all__ = ["conv", "fftconvolve", "oaconvolve", "pool"]
