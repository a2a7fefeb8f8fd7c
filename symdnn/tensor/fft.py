"""``T.fft``: discrete Fourier transforms under ``numpy.fft``'s names."""

from typing import TYPE_CHECKING as _CHECKED

from symdnn.graph.names.elsewhere import refusing as _refusing
from symdnn.ops.fourier import functions as _functions
from symdnn.ops.fourier.convolve import next_fast_len
from symdnn.ops.fourier.functions import *

__all__ = [
    "next_fast_len", *_functions.__all__,
]  # fmt: skip

if not _CHECKED:  # a checker of types would believe that every name exists
    __getattr__ = _refusing(__name__)
