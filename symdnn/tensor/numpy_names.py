"""NumPy's numbers and dtypes, and its names of functions that Theano has under other ones."""

import ml_dtypes
import numpy as np

from symdnn.ops.array.join import concatenate
from symdnn.ops.elementwise.arithmetic import true_div
from symdnn.ops.elementwise.comparison import invert, left_shift, right_shift
from symdnn.ops.elementwise.math import (
    arccos,
    arccosh,
    arcsin,
    arcsinh,
    arctan,
    arctan2,
    arctanh,
    deg2rad,
    rad2deg,
)
from symdnn.ops.elementwise.rounding import round as round_elements
from symdnn.ops.matrix.expm import expm as matrix_exp

concat = concatenate
divide, around, radians, degrees = true_div, round_elements, deg2rad, rad2deg
bitwise_invert, bitwise_left_shift, bitwise_right_shift = invert, left_shift, right_shift
#: Numbers and dtypes, as NumPy's.
pi, e, inf, nan, newaxis = np.pi, np.e, np.inf, np.nan, None
bool_, int8, int16, int32, int64 = np.bool_, np.int8, np.int16, np.int32, np.int64
uint8, uint16, uint32, uint64 = np.uint8, np.uint16, np.uint32, np.uint64
float16, float32, float64 = np.float16, np.float32, np.float64
bfloat16 = ml_dtypes.bfloat16
complex64, complex128 = np.complex64, np.complex128
acos, acosh, asin, asinh = arccos, arccosh, arcsin, arcsinh
atan, atan2, atanh = arctan, arctan2, arctanh

__all__ = [
    "acos", "acosh", "around", "asin", "asinh", "atan", "atan2", "atanh", "bfloat16",
    "bitwise_invert", "bitwise_left_shift", "bitwise_right_shift", "bool_", "complex128",
    "complex64", "concat", "degrees", "divide", "e", "float16", "float32", "float64", "inf",
    "int16", "int32", "int64", "int8", "matrix_exp", "nan", "newaxis", "pi", "radians", "uint16",
    "uint32", "uint64", "uint8",
]  # fmt: skip
