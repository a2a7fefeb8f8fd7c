"""``T.fft``: discrete Fourier transforms under ``numpy.fft``'s names."""

from symdnn.ops.fourier import functions as _functions
from symdnn.ops.fourier.convolve import next_fast_len
from symdnn.ops.fourier.functions import *

__all__ = [
    "next_fast_len", *_functions.__all__,
]  # fmt: skip
