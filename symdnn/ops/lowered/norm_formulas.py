"""The elementwise formulas of batch normalisation, as scalar programs for kernels and fusion."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from symdnn.ops.core.dtype import work_dtype
from symdnn.ops.core.scalar import RESULT, Builder, Scalar, ScalarProgram


def formula(
    dtypes: Sequence[str], compute: Callable[..., Any], *out: str
) -> ScalarProgram:  # fmt: skip
    """The program of ``compute``, whose results are rounded to the dtypes ``out``.

    It computes in the dtype of the first input, in float32 for a 16-bit one.
    """
    builder = Builder(dtypes)
    work = work_dtype(dtypes[0])
    results = compute(*(builder.input(i).cast(work) for i in range(len(dtypes))))
    results = results if isinstance(results, tuple) else (results,)
    return builder.program(
        [r.cast(d, RESULT) for r, d in zip(results, out or (work,) * len(results))]
    )


def normalised(x: Scalar, gamma: Scalar, beta: Scalar, mean: Scalar, r: Scalar) -> Scalar:
    """The forward result; ``r`` is 1 / standard deviation."""
    return (x - mean) * (r * gamma) + beta


def grad_terms(dtypes: Sequence[str]) -> ScalarProgram:
    """(dy, dy * xhat) of (x, dy, mean, invstd): their sums are the parameters' gradients."""
    return formula(dtypes, lambda x, dy, mean, r: (dy, dy * ((x - mean) * r)))


def grad_program(
    x: Scalar, dy: Scalar, gamma: Scalar, mean: Scalar, r: Scalar, a: Scalar, b: Scalar
) -> Scalar:
    """The gradient of x, where a and b are the means of dy and of dy * xhat."""
    return (dy - a - ((x - mean) * r) * b) * (r * gamma)
