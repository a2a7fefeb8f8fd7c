"""Sums of batch normalisation's gradient that write their cotangent, in an emulator."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from symdnn.gpu.binding import nvrtc
from symdnn.gpu.norm.batchnorm import SumsKernel
from symdnn.graph.type import numpy_dtype
from symdnn.ops.core.scalar import Builder, ScalarProgram
from symdnn.ops.lowered.norm_formulas import grad_terms
from symdnn.ops.lowered.norm_parts import BatchSums
from tests.gpu import emulator
from tests.gpu.emulator import device_copy
from tests.gpu.table import assert_close, concrete

pytestmark = pytest.mark.skipif(not emulator.AVAILABLE, reason="needs g++")


def program(dtype: str) -> ScalarProgram:
    """Both terms of (x, a, b, mean, invstd), whose cotangent is the sum of a and b: written."""
    work = "float64" if dtype == "float64" else "float32"
    builder = Builder((dtype, dtype, dtype, work, work))
    x, a, b, mean, r = (builder.input(i) for i in range(5))
    cotangent = (a.cast(work) + b.cast(work)).cast(dtype)
    terms = grad_terms((dtype, dtype, work, work))
    return builder.program([*builder.inline(terms, [x, cotangent, mean, r]), cotangent])


def drawn(rng: Any, dtype: str, shape: tuple[int, ...], axes: tuple[int, ...]) -> list[Any]:
    own = tuple(1 if i in axes else n for i, n in enumerate(shape))
    work = "float64" if dtype == "float64" else "float32"
    whole = [rng.standard_normal(shape).astype(numpy_dtype(dtype)) for _ in range(3)]
    each = [rng.standard_normal(own).astype(work) for _ in range(2)]
    return [device_copy(a)[1] for a in (*whole, *each)]


def computed(op: BatchSums, arrays: list[Any]) -> list[str]:
    """Compare with the reference; the names of the kernels."""
    call = concrete(op, arrays)
    assert SumsKernel().refuses(call) is None
    results, env = emulator.run(SumsKernel(), call, arrays)
    for got, want in zip(results, op.compute(*arrays), strict=True):
        assert_close(got, want, 1e-2 if got.dtype.itemsize == 2 else 2e-4)
    return env.launched


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64"])
@pytest.mark.parametrize(
    ("shape", "axes"),
    [
        ((3, 7, 5, 16), (0, 1, 2)),
        ((900, 2, 1, 24), (0, 1, 2)),
        ((4, 3, 6, 8), (0, 2, 3)),
        ((3, 8), (0,)),
    ],
)
def test_one_kernel_where_vectors_are_read(
    rng: Any, dtype: str, shape: tuple[int, ...], axes: tuple[int, ...]
) -> None:
    op = BatchSums(program(dtype), axes, True)
    assert computed(op, drawn(rng, dtype, shape, axes)) == ["reduce"]


@pytest.mark.parametrize(("shape", "axes"), [((3, 5, 7), (0, 2)), ((4, 9, 3), (0, 1))])
def test_two_kernels_where_none_are(
    rng: Any, shape: tuple[int, ...], axes: tuple[int, ...]
) -> None:
    op = BatchSums(program("float32"), axes, True)
    assert computed(op, drawn(rng, "float32", shape, axes)) == ["reduce", "elementwise"]


def test_two_kernels_where_the_result_has_other_strides(rng: Any) -> None:
    op = BatchSums(program("float32"), (0, 1), True)
    arrays = drawn(rng, "float32", (6, 4, 8), (0, 1))
    arrays[:3] = [a.reshape(4, 6, 8).transpose(1, 0, 2) for a in arrays[:3]]
    assert computed(op, arrays) == ["reduce", "elementwise"]


def test_the_cotangent_may_overwrite_what_it_is_of(rng: Any) -> None:
    op = BatchSums(program("bfloat16"), (0, 1, 2), True)
    arrays = drawn(rng, "bfloat16", (5, 9, 7, 16), (0, 1, 2))
    call, want = concrete(op, arrays), [np.array(v) for v in op.compute(*arrays)]
    out = [device_copy(np.zeros_like(v))[1] for v in want[:4]] + [arrays[1]]
    results, env = emulator.run(SumsKernel(), call, arrays, out)
    assert env.launched == ["reduce"]
    for got, value in zip(results, want, strict=True):
        assert_close(got, value, 1e-2)


def test_the_source_compiles(rng: Any) -> None:
    op = BatchSums(program("bfloat16"), (0, 1, 2), True)
    call = concrete(op, drawn(rng, "bfloat16", (8, 4, 4, 64), (0, 1, 2)))
    for source in SumsKernel().sources(call):
        nvrtc.compile_cubin(source, (9, 0))
