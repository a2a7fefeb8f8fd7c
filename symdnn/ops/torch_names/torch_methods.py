"""Methods of PyTorch's tensors that are functions here: ``x.atan2(y)`` is ``T.atan2(x, y)``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from symdnn.graph.typing import TensorLike
from symdnn.ops.array import sort, take
from symdnn.ops.elementwise import (
    arithmetic,
    bessel,
    comparison,
    complexes,
    incomplete,
    math,
    special,
)
from symdnn.ops.linalg.linalg import kron
from symdnn.ops.matrix import determinant, expm, qr, solve, svd
from symdnn.ops.numpy_names import (
    numpy_arrays,
    numpy_math,
    numpy_more,
    numpy_numbers,
    numpy_polynomials,
)
from symdnn.ops.torch_names import torch_more


def _unique(
    x: TensorLike, sorted: bool = True, return_inverse: bool = False,
    return_counts: bool = False, dim: int | None = None,
) -> Any:  # fmt: skip
    return sort.unique(x, False, return_inverse, return_counts, dim)


METHODS: dict[str, Callable[..., Any]] = {
    **{
        f.__name__: f
        for f in (
            bessel.i0, comparison.allclose, comparison.isclose, complexes.angle,
            determinant.det, determinant.slogdet, expm.matrix_power, kron, math.arctan2,
            math.logaddexp, numpy_arrays.argwhere, numpy_arrays.dsplit, numpy_arrays.fliplr,
            numpy_arrays.flipud, numpy_arrays.hsplit, numpy_arrays.rot90, numpy_arrays.vsplit,
            numpy_math.copysign, numpy_math.float_power, numpy_math.fmax, numpy_math.fmin,
            numpy_math.fmod, numpy_math.heaviside, numpy_math.hypot, numpy_math.inner,
            numpy_math.isneginf, numpy_math.isposinf, numpy_math.logaddexp2,
            numpy_math.logical_xor, numpy_math.positive, numpy_math.signbit, numpy_math.sinc,
            numpy_math.vdot, numpy_more.diagflat, numpy_more.isreal, numpy_numbers.fix,
            numpy_numbers.frexp, numpy_numbers.gcd, numpy_numbers.lcm, numpy_numbers.ldexp,
            numpy_numbers.nextafter, numpy_polynomials.corrcoef, numpy_polynomials.cov,
            special.erfc, special.erfinv, special.logit, take.bincount, torch_more.adjoint,
            torch_more.diag_embed, torch_more.diagonal_scatter, torch_more.histc,
            torch_more.logdet, torch_more.masked_scatter, torch_more.msort,
            torch_more.select_scatter, torch_more.slice_scatter, torch_more.split_with_sizes,
            torch_more.take_along_dim, torch_more.unique_consecutive,
        )
    },
    "acos": math.arccos, "acosh": math.arccosh, "asin": math.arcsin, "asinh": math.arcsinh,
    "atan": math.arctan, "atan2": math.arctan2, "atanh": math.arctanh,
    "bitwise_and": comparison.and_, "bitwise_left_shift": comparison.left_shift,
    "bitwise_not": comparison.invert, "bitwise_or": comparison.or_,
    "bitwise_right_shift": comparison.right_shift, "bitwise_xor": comparison.xor,
    "divide": arithmetic.true_div, "floor_divide": arithmetic.int_div,
    "greater": comparison.gt, "greater_equal": comparison.ge, "inverse": solve.inv,
    "less": comparison.lt, "less_equal": comparison.le, "matrix_exp": expm.expm,
    "negative": arithmetic.neg, "not_equal": comparison.neq, "remainder": arithmetic.mod,
    "sgn": arithmetic.sgn, "true_divide": arithmetic.true_div,
    "cross": numpy_math.cross, "nanquantile": numpy_numbers.nanquantile, "unique": _unique,
    "igamma": incomplete.gammainc, "igammac": incomplete.gammaincc,
    "mvlgamma": torch_more.mvlgamma, "pinverse": svd.pinv, "qr": qr.qr,
    "subtract": arithmetic.sub,
}  # fmt: skip
FUNCTIONS: dict[str, Callable[..., Any]] = torch_more.FUNCTIONS
