"""Reductions of lines that begin anywhere: columns in vectors that do, rows in aligned ones."""

from __future__ import annotations

import numpy as np
import pytest

from symdnn.gpu.binding.nvrtc import compile_cubin
from symdnn.gpu.kernels.reduce import ReductionKernel
from symdnn.graph.type import numpy_dtype
from symdnn.ops.array import argreduce
from symdnn.ops.array import reduce as red
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
    "argmin": argreduce.ArgMin, "logsumexp": red.LogSumExp,
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
    ],
)  # fmt: skip
def test_lines_without_aligned_vectors(name, dtype, shape, axes):
    rng, op = new_rng(), OPS[name](axes)
    x = 9 * rng.standard_normal(shape)
    x = (abs(x) if dtype == "uint8" else x).astype(numpy_dtype(dtype))
    wide = x.astype("float64") if name == "logsumexp" or x.dtype.kind not in "bi" else x
    wanted = op.compute(wide)[0]
    whole = emulator.device_copy(np.concatenate([x.ravel()[:3], x.ravel()]))[1]
    for memory in (emulator.device_copy(x)[1], whole[3:].reshape(shape)):
        got = reduced(op, x, memory)
        tol = {"float32": 2e-6, "float16": 2e-3, "bfloat16": 8e-3}.get(got.dtype.name, 0)
        np.testing.assert_allclose(np.float64(got), np.float64(wanted), tol, 40 * tol)


@needs_gpp
def test_the_first_of_equal_elements_is_found_at_the_ends_of_rows():
    for length in range(65, 74, 2):
        x = np.zeros((4, length), "float32")
        x[0, -1], x[1, -3], x[1, -2], x[2, :] = 1, 1, 1, -1
        got = reduced(argreduce.ArgMax((1,)), x, emulator.device_copy(x)[1])
        np.testing.assert_array_equal(got, x.argmax(1))


def test_the_text_compiles():
    for name, dtype in (("sum", "bfloat16"), ("logsumexp", "float32"), ("max", "bool")):
        for axis in (0, 1):
            call = concrete(OPS[name]((axis,)), [np.zeros((67, 1033), numpy_dtype(dtype))])
            for text in KERNEL.sources(call):
                assert "#define LOOSE 1" in text
                assert compile_cubin(text, (9, 0))
