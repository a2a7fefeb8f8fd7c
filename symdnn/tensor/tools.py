"""Static values of variables, lists of dtypes, and grids of numbers."""

from symdnn.ops.array.grids import *
from symdnn.ops.core.constant_value import get_scalar_constant_value, get_vector_length
from symdnn.ops.core.gradient_control import Assert

int_dtypes = ["int8", "int16", "int32", "int64"]
uint_dtypes = ["uint8", "uint16", "uint32", "uint64"]
float_dtypes = ["float16", "float32", "float64"]
complex_dtypes = ["complex64", "complex128"]
integer_dtypes = int_dtypes + uint_dtypes
discrete_dtypes = ["bool", *integer_dtypes]
continuous_dtypes = float_dtypes + complex_dtypes
all_dtypes = discrete_dtypes + continuous_dtypes

__all__ = [
    "Assert", "all_dtypes", "atleast_1d", "atleast_2d", "atleast_3d", "complex_dtypes",
    "continuous_dtypes",
    "discrete_dtypes", "float_dtypes", "get_scalar_constant_value", "get_vector_length",
    "int_dtypes", "integer_dtypes", "inverse_permutation", "mgrid", "ogrid",
    "permute_row_elements", "uint_dtypes",
]  # fmt: skip
