"""One graph on the GPU and as NumPy in float64: results and gradients must agree.

Inputs are rounded to the dtype first, so that what is compared is what the device computes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from symdnn.autodiff import grad
from symdnn.compile.function import function
from symdnn.compile.program.mode import Mode
from symdnn.graph.type import TensorType, numpy_dtype
from symdnn.graph.variable import Variable
from symdnn.ops.array.create import arange
from symdnn.ops.elementwise.arithmetic import cast
from symdnn.ops.elementwise.math import cos

#: Largest error, as a part of the largest value.
TOLERANCE = {"float16": 1e-2, "bfloat16": 8e-2, "float32": 2e-4, "float64": 1e-9}
DTYPES = tuple(TOLERANCE)
TARGET = "cuda"

Build = Callable[..., Any]


@dataclass
class Compiled:
    """A function on the GPU, and which kernels ran it."""

    run: Any

    def __call__(self, *arrays: Any) -> list[Any]:
        return [np.asarray(a) for a in self.run(*arrays)]

    def assert_ran(self, kernels: Sequence[str]) -> None:
        """Each of these kernels must be in the plans made so far."""
        ran = set(self.run.lowering_report().kernels())
        missing = set(kernels) - ran
        assert TARGET != "cuda" or not missing, f"{missing} did not run, but {ran}"


def variables(arrays: Sequence[Any], dtype: str) -> list[Variable]:
    """A variable for each array, floats in ``dtype``; sizes of 1 are static, so they broadcast."""
    made = []
    for i, a in enumerate(arrays):
        kind = dtype if a.dtype.kind == "f" else a.dtype.name
        made.append(TensorType(kind, [d if d == 1 else None for d in a.shape])(f"v{i}"))
    return made


def outputs(build: Build, vs: Sequence[Variable], wrt: Sequence[int] | None) -> list[Variable]:
    """What ``build`` makes, then the gradients of a weighted sum of it in the inputs ``wrt``."""
    made = build(*vs)
    out = list(made) if isinstance(made, list | tuple) else [made]
    which = [i for i, v in enumerate(vs) if v.type.is_float] if wrt is None else list(wrt)
    if not which:
        return out
    cost = sum((cast(v, "float64") * weights(v)).sum() for v in out if v.type.is_float)
    return [*out, *grad(cost, [vs[i] for i in which], disconnected_inputs="ignore")]


def weights(v: Variable) -> Variable:
    """A weight for each element: like noise, and the same on every device."""
    return cos(arange(v.size, dtype="float64") * 1.7 + 0.3).reshape(v.shape, ndim=v.type.ndim)


def compiled(build: Build, arrays: Sequence[Any], dtype: str, wrt: Any = None) -> Compiled:
    """The function of ``build`` on the GPU."""
    vs = variables(arrays, dtype)
    mode = Mode(target=TARGET)
    return Compiled(function(vs, outputs(build, vs, wrt), mode=mode, on_unused_input="ignore"))


def truth(build: Build, arrays: Sequence[Any], wrt: Any = None) -> list[Any]:
    """The same by the NumPy references in float64, no rewrite applied."""
    vs = variables(arrays, "float64")
    mode = Mode(optimizer="None", target="cpu")
    run = function(vs, outputs(build, vs, wrt), mode=mode, on_unused_input="ignore")
    return [np.asarray(a) for a in run(*arrays)]


def rounded(arrays: Sequence[Any], dtype: str) -> tuple[list[Any], list[Any]]:
    """Float arrays in ``dtype``, and the same values in float64."""
    kind = numpy_dtype(dtype)
    low = [a.astype(kind) if a.dtype.kind == "f" else a for a in arrays]
    return low, [a.astype(np.float64) if b.dtype.kind == "f" else a for a, b in zip(low, arrays)]


def assert_agree(
    build: Build,
    arrays: Sequence[Any],
    dtype: str = "float32",
    kernels: Sequence[str] = (),
    wrt: Sequence[int] | None = None,
    tolerance: float | None = None,
) -> Compiled:
    """Compare results and gradients; each name in ``kernels`` must have run.

    ``wrt`` are the inputs whose gradients are taken (None: all floats).
    """
    low, wide = rounded(arrays, dtype)
    f = compiled(build, arrays, dtype, wrt)
    got, want = f(*low), truth(build, wide, wrt)
    limit = TOLERANCE[dtype] if tolerance is None else tolerance
    for i, (a, b) in enumerate(zip(got, want, strict=True)):
        assert_close(a, b, limit, f"output {i} of {len(got)}")
    f.assert_ran(kernels)
    return f


def assert_close(got: Any, want: Any, limit: float, what: str = "") -> None:
    """Equal shapes, and an error that is small beside the largest value."""
    assert got.shape == want.shape, what
    a, b = got.astype(np.float64), want.astype(np.float64)
    if not b.size:
        return
    finite = np.isfinite(b)
    np.testing.assert_array_equal(np.isnan(a), np.isnan(b), what)
    np.testing.assert_array_equal(np.isposinf(a), np.isposinf(b), what)
    scale = max(float(np.abs(b[finite]).max(initial=0)), 1e-3)
    error = float(np.abs(a[finite] - b[finite]).max(initial=0))
    assert error <= limit * scale, f"{what}: error {error} beside values up to {scale}"


def normal(*shape: int, seed: int = 0, scale: float = 1.0) -> Any:
    """Standard normal values."""
    return np.random.default_rng((seed, *shape)).standard_normal(shape) * scale


def distinct(*shape: int) -> Any:
    """Well separated values in any order: up to 512 have no ties after rounding to bfloat16."""
    size = int(np.prod(shape))
    values = np.random.default_rng(size).permutation(size) - size // 2
    return values.reshape(shape) * 0.125
