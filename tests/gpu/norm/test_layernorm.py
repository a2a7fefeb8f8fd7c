"""Norms of rows in registers: the text on a CPU against NumPy, and what it needs on a device."""

from __future__ import annotations

import re

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.gpu.binding.nvrtc import compile_cubin
from symdnn.gpu.codegen.launches import WORKSPACE, Pointer, contiguous_view
from symdnn.gpu.device.context import most_shared_bytes
from symdnn.gpu.kernels.fused_rows import FusedRowsKernel, rows_launches
from symdnn.gpu.norm.layernorm import LayerNormGradKernel, LayerNormKernel
from symdnn.graph.kernel import Call, Hints
from symdnn.graph.type import TensorType, numpy_dtype
from symdnn.ops.lowered.fused_rows import FusedRows, layer_norm_grad_rows
from symdnn.ops.nn.batchnorm import LayerNorm, LayerNormGrad
from tests.gpu import emulator
from tests.gpu.reference_device import TARGET
from tests.gpu.table import concrete
from tests.seeded import sampled

NORM, GRAD = LayerNormKernel(), LayerNormGradKernel()
TOLERANCE = {"float32": 2e-6, "float64": 1e-13, "bfloat16": 1e-2, "float16": 2e-3}
SHAPES = [
    (5, 1), (9, 7), (3, 768), (130, 64), (5, 769), (2, 5000), (3, 4, 6, 5), (3, 4100), (110, 17000),
]  # fmt: skip
pytestmark = pytest.mark.skipif(not emulator.AVAILABLE, reason="there is no g++")


def drawn(seed, shape, dtype, offset=0.0):
    rng = np.random.default_rng(seed)
    return (rng.standard_normal(shape) + offset).astype(numpy_dtype(dtype))


def parameters(shape, axes, dtype, kept=()):
    own = tuple(n if i in axes or i in kept else 1 for i, n in enumerate(shape))
    wide = "float64" if dtype == "float64" else "float32"
    return [drawn(s, own, wide) for s in (1, 2)]


def close(got, want, dtype, scale=1.0):
    tol = TOLERANCE[dtype] * scale
    np.testing.assert_allclose(np.float64(got), np.float64(want), rtol=tol, atol=tol)


def dense(array):
    return emulator.device_copy(array)[1]


def norm(op, x, gamma, beta):
    """The kernel's results, those in float64, and the names of the kernels."""
    arrays = [x, gamma, beta]
    got, env = emulator.run(NORM, concrete(op, arrays), arrays)
    return got, op.compute(*map(np.float64, arrays)), env.launched


def gradient(op, x, dy, gamma):
    _, mean, invstd = LayerNorm(op.axes, op.epsilon).compute(
        *(np.float64(a) for a in (x, gamma, gamma))
    )
    arrays = [x, dy, gamma, *(dense(a.astype(gamma.dtype)) for a in (mean, invstd))]
    got, env = emulator.run(GRAD, concrete(op, arrays), arrays)
    return got, op.compute(*map(np.float64, arrays)), env.launched


@pytest.mark.parametrize("whole", [True, False], ids=["the norm", "its rows"])
def test_sums_over_no_rows_are_zeros(whole):
    op, dtype = LayerNormGrad((1,), 1e-5), "float32"
    x, dy, row = (dense(np.zeros(shape, dtype)) for shape in ((0, 7), (0, 7), (0, 1)))
    gamma = dense(np.ones((1, 7), dtype))
    call = concrete(op, [x, dy, gamma, row, row])
    given = [x, dy, gamma, row, row] if whole else [x, dy, row, gamma, row]
    if not whole:
        types = tuple(TensorType(dtype, a.shape) for a in given)
        call = Call(layer_norm_grad_rows(op, dtype, True), types, call.outputs, call.hints)
    got, _ = emulator.run(GRAD if whole else FusedRowsKernel(), call, given)
    assert [a.shape for a in got] == [(0, 7), (1, 7), (1, 7)]
    np.testing.assert_array_equal(np.concatenate(got[1:]), 0)


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        *((shape, dtype) for shape in SHAPES[:-1] for dtype in ("float32", "float64", "bfloat16")),
        *sampled([(SHAPES[-1], d) for d in ("float32", "float64", "bfloat16")], every=6),
    ],
)
def test_a_row_is_read_once(shape, dtype):
    axes = tuple(range(1, len(shape)))
    x, dy = (dense(drawn(s, shape, dtype, 3.0)) for s in (3, 4))
    gamma, beta = map(dense, parameters(shape, axes, dtype))
    got, want, launched = norm(LayerNorm(axes, 1e-5), x, gamma, beta)
    assert launched == ["fused_rows"]
    for a, b in zip(got, want, strict=True):
        close(a, b, dtype if a.dtype == x.dtype else str(a.dtype), 8)
    got, want, launched = gradient(LayerNormGrad(axes, 1e-5), x, dy, gamma)
    kept = shape[0] < 100 or 2 * gamma.nbytes + (4 << 10) <= most_shared_bytes()
    assert launched[0] == ("fused_rows" if kept else "reduce")
    for a, b in zip(got, want, strict=True):
        close(a, b, dtype if a.dtype == x.dtype else str(a.dtype), 40)


@pytest.mark.parametrize(
    ("rows", "names"),
    [(141, ["reduce", "elementwise"]), (132, ["fused_rows"]), (264, ["fused_rows"])],
)
def test_rows_that_leave_multiprocessors_idle_are_cut(rows, names):
    """A row of so many elements takes one: of 141, all but 9 would wait in the second round."""
    op, shape, row = LayerNorm((1,), 1e-5), (rows, 29892), (1, 29892)
    types = [TensorType("float32", s) for s in (shape, row, row)]
    outs = [TensorType("float32", s) for s in (shape, (rows, 1), (rows, 1))]
    call = Call(op, tuple(types), tuple(outs), Hints())
    views = [contiguous_view(i, t) for i, t in enumerate([*types, *outs])]
    assert [n.name for n in NORM.launches(call, views[:3], views[3:])] == names


def registers(cubin):
    """The registers of a thread, by the cubin's own note (EIATTR_REGCOUNT)."""
    (found,) = re.findall(rb"\x04\x2f\x08\x00.{4}(.{4})", cubin, re.DOTALL)
    return int.from_bytes(found, "little")


def norm_gradient():
    one, whole, row = (TensorType("float32", s) for s in ((8192, 1), (8192, 768), (1, 768)))
    types, outs = (whole, whole, row, one, one), (whole, row, row)
    views = [contiguous_view(i, t) for i, t in enumerate([*types, *outs])]
    call = Call(LayerNormGrad((1,), 1e-5), types, outs, Hints())
    return GRAD.launches(call, views[:5], views[5:])


def slope_and_its_sums():
    """Of a layer of 3072 units: no sum over a row, and vectors that are no power of two."""
    x, dy = (T.tensor("float32", (8192, 3072), name=n) for n in ("x", "dy"))
    dx = dy * symdnn.grad(T.nnet.gelu(x, approximate=True).sum(), x)
    f = symdnn.function([x, dy], [dx, dx.sum(axis=0)], mode=symdnn.Mode(target=TARGET))
    (node,) = [n for n in f.stages.fgraph.toposort() if isinstance(n.op, FusedRows)]
    views = [contiguous_view(i, v.type) for i, v in enumerate((*node.inputs, *node.outputs))]
    return rows_launches(node.op, views[: len(node.inputs)], views[len(node.inputs) :])


@pytest.mark.parametrize("made", [norm_gradient, slope_and_its_sums])
def test_blocks_with_sums_over_rows_find_room_beside_a_collective(made):
    """On 116 of 132 multiprocessors, the others of which NCCL holds, all of them run at once: what
    waits there takes as long again."""
    pytest.importorskip("cuda.bindings.nvrtc")
    first, *_ = made()
    (threads,), (blocks,) = first.block, first.grid
    each = -(-registers(compile_cubin(first.source, (9, 0))) // 8) * 8 * threads
    assert 132 <= blocks <= 116 * min(65536 // each, 2048 // threads)


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
@pytest.mark.parametrize("elements", [8, 40, 770, 5000])
def test_sums_over_few_rows_take_memory_for_these(elements, dtype):
    """As many partial results as there are blocks, which are no more than rows."""
    wide = "float64" if dtype == "float64" else "float32"
    each = 2 * elements * numpy_dtype(wide).itemsize
    for rows in (1, 2, 7, 63, 64, 65, 129, 527, 528, 1000, 9000):
        types = [TensorType(dtype, (rows, elements))] * 2
        types += [TensorType(wide, s) for s in ((1, elements), (rows, 1), (rows, 1))]
        outs = (types[0], types[2], types[2])
        views = [contiguous_view(i, t) for i, t in enumerate([*types, *outs])]
        call = Call(LayerNormGrad((1,), 1e-5), tuple(types), outs, Hints())
        nbytes, sums = GRAD.workspace_bytes(call), 0
        for launch in GRAD.launches(call, views[:5], views[5:]):
            for at in launch.parameters:
                if launch.name == "fused_rows" and at == Pointer(
                    WORKSPACE, getattr(at, "offset", 0)
                ):
                    sums = at.offset + each * launch.grid[0]
        assert 0 < sums <= nbytes
        if rows < 64:
            assert nbytes < 2 * each * (rows + 8)


def test_sums_that_no_block_has_room_for_are_reductions():
    """Added in memory row by row, they took three times as long as two reductions."""
    op, shape, row = LayerNormGrad((1,), 1e-5), (141, 29892), (1, 29892)
    one = TensorType("float32", (141, 1))
    x, gamma = TensorType("float32", shape), TensorType("float32", row)
    types, outs = (x, x, gamma, one, one), (x, gamma, gamma)
    views = [contiguous_view(i, t) for i, t in enumerate([*types, *outs])]
    found = GRAD.launches(Call(op, types, outs, Hints()), views[:5], views[5:])
    assert [n.name for n in found] == ["reduce", "reduce", "elementwise"]


@pytest.mark.parametrize("shape", [(9, 7), (300, 768), (2, 5000), (3, 70_000), (20_000, 8)])
@pytest.mark.parametrize("at", [0, 1])
@pytest.mark.parametrize("sums", [True, False])
def test_rows_are_made_in_the_memory_of_an_input(shape, at, sums):
    """Whether a row is held in registers or in shared memory, read again, or cut into parts."""
    op = layer_norm_grad_rows(LayerNormGrad((1,), 1e-5), "float32", sums)
    row, column = (shape[0], 1), (1, shape[1])
    own = [shape, shape, row, column, row]
    given = [dense(drawn(s, n, "float32")) for s, n in enumerate(own)]
    assert set(op.may_overwrite[0]) == set(range(5))
    call, kernel = concrete(op, given), FusedRowsKernel()
    want, _ = emulator.run(kernel, call, given)
    rest = [dense(np.zeros(v.shape, v.dtype)) for v in want[1:]]
    got, _ = emulator.run(kernel, call, given, out=[given[at], *rest])
    for a, b in zip(got, want, strict=True):
        np.testing.assert_array_equal(a, b)
