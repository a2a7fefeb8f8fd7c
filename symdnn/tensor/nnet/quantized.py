"""Numbers of 8 bits and fewer, under ``T.nnet``."""

from symdnn.ops.elementwise.quantize import dequantize, quantize

__all__ = ["dequantize", "quantize"]
