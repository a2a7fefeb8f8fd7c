"""Reductions of lines that begin anywhere: columns in vectors that do, rows in aligned ones."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.special

from symdnn.gpu.binding.nvrtc import compile_cubin
from symdnn.gpu.kernels.reduce import ReductionKernel
from symdnn.gpu.norm.batchnorm import MomentsKernel
from symdnn.graph.type import numpy_dtype
from symdnn.ops.array import argreduce
from symdnn.ops.array import reduce as red
from symdnn.ops.core.scalar import Builder
from symdnn.ops.lowered.fused import FusedReduce
from symdnn.ops.lowered.norm_parts import BatchMoments
from tests.gpu import emulator
from tests.gpu.table import concrete
from tests.seeded import new_rng

KERNEL = ReductionKernel()
needs_gpp = pytest.mark.skipif(not emulator.AVAILABLE, reason="there is no g++")
#: Rows and columns, in groups, and few of many elements, which are cut into chunks.
CASES = [
    ((37, 323), (1,)), ((40, 33), (1,)), ((70, 131), (0,)), ((3, 45, 67), (1,)), ((3, 9001), (1,)),
    ((2500, 67), (0,)),
]  # fmt: skip
OPS = {
    "sum": lambda axes: red.Sum(axes, False, "float32", "float32"), "max": red.Max,
    "argmin": argreduce.ArgMin, "logsumexp": red.LogSumExp, "any": red.AnyTrue,
    "all": red.AllTrue, "sum64": lambda axes: red.Sum(axes, False, "int64", "int64"),
}  # fmt: skip


def reduced(op, x, memory):
    call = concrete(op, [x])
    (got,), env = emulator.run(KERNEL, call, [memory])
    assert env.launched == ["reduce"]
    assert all("#define LOOSE 1" in text for text in KERNEL.sources(call))
    return got


@needs_gpp
@pytest.mark.parametrize(("shape", "axes"), CASES, ids=str)
@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("sum", "bfloat16"), ("max", "int8"), ("argmin", "float32"), ("argmin", "bfloat16"),
        ("logsumexp", "float32"), ("sum", "bool"), ("logsumexp", "float16"), ("logsumexp", "bool"),
        ("logsumexp", "uint8"), ("logsumexp", "int32"), ("logsumexp", "bfloat16"),
        ("sum64", "bool"), ("sum64", "int8"), ("sum64", "uint8"), ("any", "bool"),
        ("all", "int8"), ("any", "uint8"),
    ],
)  # fmt: skip
def test_lines_without_aligned_vectors(name, dtype, shape, axes):
    rng, op = new_rng(), OPS[name](axes)
    x = 9 * rng.standard_normal(shape)
    x = (abs(x) if dtype == "uint8" else x).astype(numpy_dtype(dtype))
    if name in ("any", "all"):  # some lines are decided by no or one element
        x = (x != 0 if name == "all" else 0 * x).astype(x.dtype)
        x.reshape(-1)[:: x.size // 5] = name == "any"
        x.reshape(-1)[-1] = name == "any"
    wide = x.astype("float64") if name == "logsumexp" or x.dtype.kind not in "bi" else x
    wanted = op.compute(wide)[0]
    whole = emulator.device_copy(np.concatenate([x.ravel()[:3], x.ravel()]))[1]
    for memory in (emulator.device_copy(x)[1], whole[3:].reshape(shape)):
        got = reduced(op, x, memory)
        tol = {"float32": 2e-6, "float16": 2e-3, "bfloat16": 8e-3}.get(got.dtype.name, 0)
        np.testing.assert_allclose(np.float64(got), np.float64(wanted), tol, 40 * tol)


@needs_gpp
@pytest.mark.parametrize("have", ["bool", "int8", "uint8"])
@pytest.mark.parametrize("want", ["int8", "uint8", "uint32", "int64", "float32", "bfloat16"])
def test_bytes_are_reduced_as_what_they_are_cast_to(have, want):
    for shape, axes in (((64, 256), (0, 1)), ((64, 256), (1,)), ((333, 47), (0,))):
        x = new_rng().integers(0, 256, shape).astype("uint8")
        x = x % 2 == 0 if have == "bool" else x.view(have)
        b = Builder([have])
        acc = {"i": "int64", "u": "uint64"}.get(np.dtype(numpy_dtype(want)).kind, "float32")
        program = b.program([b.input(0).cast(want)])
        op = FusedReduce(program, (red.Sum(axes, False, acc, acc),))
        (got,), _ = emulator.run(KERNEL, concrete(op, [x]), [emulator.device_copy(x)[1]])
        wanted = x.astype(numpy_dtype(want)).astype(acc).sum(axes)
        np.testing.assert_allclose(got, wanted, 1e-6 if acc == "float32" else 0)


@needs_gpp
def test_the_first_of_equal_elements_is_found_at_the_ends_of_rows():
    for length in range(65, 74, 2):
        x = np.zeros((4, length), "float32")
        x[0, -1], x[1, -3], x[1, -2], x[2, :] = 1, 1, 1, -1
        got = reduced(argreduce.ArgMax((1,)), x, emulator.device_copy(x)[1])
        np.testing.assert_array_equal(got, x.argmax(1))


@needs_gpp
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize("shape", [(6, 323), (6, 2048), (6, 3)], ids=str)
@pytest.mark.parametrize("axis", [0, 1])
def test_log_sums_of_infinities_and_nan(axis, shape, dtype):
    x = new_rng().standard_normal(shape)
    x[0], x[1, 1], x[2, -1], x[3, 0] = -np.inf, np.inf, np.nan, -np.inf
    x[4, 0], x[4, 1], x[5] = np.inf, np.nan, 3e38
    x = (x if axis else x.T.copy()).astype(numpy_dtype(dtype))
    call = concrete(red.LogSumExp((axis,)), [x])
    (got,), _ = emulator.run(KERNEL, call, [emulator.device_copy(x)[1]])
    wanted = scipy.special.logsumexp(np.float64(x), axis)
    np.testing.assert_allclose(np.float64(got), wanted, {"bfloat16": 8e-3}.get(dtype, 2e-6))


@needs_gpp
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_moments_of_lines_that_begin_anywhere(dtype):
    kernel = MomentsKernel()
    for shape, axis in (((37, 323), 1), ((3, 9001), 1), ((70, 131), 0), ((2500, 67), 0)):
        x = (50 + new_rng().standard_normal(shape)).astype(numpy_dtype(dtype))
        call = concrete(BatchMoments((axis,), 1e-5), [x])
        assert all("#define LOOSE 1" in text for text in kernel.sources(call))
        whole = emulator.device_copy(
            np.concatenate([np.full(3, np.inf), x.ravel()]).astype(x.dtype)
        )
        for memory in (emulator.device_copy(x)[1], whole[1][3:].reshape(shape)):
            found, _ = emulator.run(kernel, call, [memory])
            wide = np.float64(x)
            wanted = wide.mean(axis), 1 / np.sqrt(wide.var(axis) + 1e-5)
            for got, right in zip(found, wanted):
                np.testing.assert_allclose(np.float64(got).ravel(), right, 2e-5)


def test_the_text_compiles():
    for name, dtype in (("sum", "bfloat16"), ("logsumexp", "float32"), ("max", "bool")):
        for axis in (0, 1):
            call = concrete(OPS[name]((axis,)), [np.zeros((67, 1033), numpy_dtype(dtype))])
            for text in KERNEL.sources(call):
                assert "#define LOOSE 1" in text
                assert compile_cubin(text, (9, 0))
