"""Signal processing: pooling, convolutions of stacks of images and by transforms, recursive
filters, windows, and short-time Fourier transforms."""

from symdnn.ops.array.filters import lfilter
from symdnn.ops.fourier.convolve import fftconvolve, oaconvolve
from symdnn.ops.torch_names import torch_signal as _torch_signal
from symdnn.ops.torch_names.torch_signal import *
from symdnn.tensor.signal import conv, pool

__all__ = ["conv", "fftconvolve", "lfilter", "oaconvolve", "pool", *_torch_signal.__all__]
