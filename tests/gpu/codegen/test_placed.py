"""Values added to parts of zeros, as one kernel: against the reference, on a CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.gpu.binding.nvrtc import compile_cubin
from symdnn.gpu.kernels.parts import PlacedKernel
from symdnn.graph.type import numpy_dtype
from symdnn.ops.array.reduce import Sum
from symdnn.ops.core.scalar import Builder
from symdnn.ops.lowered.gathered import FusedPlacedSums, PlacedSums
from tests.gpu import emulator
from tests.gpu.emulator import device_copy
from tests.gpu.fake_device import fake_device  # noqa: F401
from tests.gpu.table import assert_close, concrete

pytestmark = pytest.mark.skipif(not emulator.AVAILABLE, reason="needs g++")

#: The shape of the result, and the slices of its parts.
CASES = {
    "rows": ((70, 90), (np.s_[1:], np.s_[:-1])),
    "columns": ((4, 200), (np.s_[:, 2:], np.s_[:, 1:-1], np.s_[:, :-2])),
    "a line": ((1000,), (np.s_[1:], np.s_[:-1])),
    "even and odd": ((5, 131), (np.s_[:, ::2], np.s_[:, 1::2])),
    "backwards": ((5, 31), (np.s_[::-1, ::-2], np.s_[4:1:-1, 1::3], np.s_[:, -2::-3])),
    "a middle axis": ((4, 30, 9), (np.s_[:, 1:], np.s_[:, :-1])),
    "planes": ((2, 3, 8, 9), (np.s_[:, :, 1:], np.s_[:, :, :-1], np.s_[..., 1:])),
    "a cross": ((6, 7), (np.s_[2:, 1:-1], np.s_[:-2, 1:-1], np.s_[1:-1, 2:], np.s_[1:-1, :-2])),
    "short rows": ((500, 3), (np.s_[:, 1:], np.s_[:, :-1])),
    "few": ((30, 9), (np.s_[10:11, 2:4],)),
    "nothing": ((6, 9), (np.s_[5:5], np.s_[:, 9:])),
    "one of them empty": ((6, 9), (np.s_[5:5], np.s_[:, 3:])),
    "no elements": ((0, 9), (np.s_[1:],)),
    "ones": ((1, 1), (np.s_[:1], np.s_[::-1])),
    "beside ones": ((1, 9, 1), (np.s_[:, 2:], np.s_[:, ::3])),
}
#: A source for each dtype and structure takes seconds to compile, so each dtype has a few cases.
EACH = [(case, "float32") for case in CASES]
EACH += [("backwards", d) for d in ("float64", "float16", "bfloat16", "int8", "int64")]
FUSED = [("backwards", "bfloat16"), ("short rows", "float64"), ("one of them empty", "float32")]


def pattern_of(shape: Any, parts: Any) -> Any:
    found = []
    for part in parts:
        given = [p for p in (part if isinstance(part, tuple) else (part,)) if p is not ...]
        rest = [slice(None)] * (len(shape) - len(given))
        whole = [*rest, *given] if isinstance(part, tuple) and part[0] is ... else [*given, *rest]
        found.append(tuple((s.start, s.stop, s.step) for s in whole))
    return tuple(found)


def compare(op: Any, *arrays: Any) -> None:
    """Run the kernel where the arrays lie, and have its source compiled for a device."""
    call = concrete(op, list(arrays))
    kernel = PlacedKernel()
    assert kernel.refuses(call) is None
    results, env = emulator.run(kernel, call, list(arrays))
    (wanted,) = op.compute(*arrays)
    assert_close(results[0], wanted, None)
    assert len(env.launched) == (wanted.size > 0)


def layouts(y: Any) -> list[Any]:
    """The array in several ways: dense, with gaps, backwards, transposed; one row broadcasts."""
    dense = device_copy(y)[1]
    gaps = device_copy(np.repeat(y, 2, -1))[1][..., ::2]
    back = device_copy(y[..., ::-1])[1][..., ::-1]
    return [dense, gaps, back, device_copy(y.T)[1].T, dense[:1]]


@pytest.mark.parametrize(("case", "dtype"), EACH)
def test_parts_are_added_as_the_reference_does(rng: Any, case: str, dtype: str) -> None:
    shape, parts = CASES[case]
    factors = (1.0, -2.0, 3.0, 1.0) if dtype in ("float32", "float64") else (1.0,) * 4
    op = PlacedSums((None,) * len(shape), pattern_of(shape, parts), factors[: len(parts)])
    empty = np.zeros(shape)
    ys = [(rng.normal(size=empty[p].shape) * 9).astype(numpy_dtype(dtype)) for p in parts]
    sizes = [np.asarray(n) for n in shape]
    for given in zip(*map(layouts, ys)):
        compare(op, *given, *sizes)


def differences(x: Any) -> Any:
    """The gradient of the sum of squares of differences of neighbours along the last two axes."""
    down, right = x[..., 1:, :] - x[..., :-1, :], x[..., 1:] - x[..., :-1]
    out = np.zeros_like(x)
    out[..., 1:, :] += 2 * down
    out[..., :-1, :] -= 2 * down
    out[..., 1:] += 2 * right
    out[..., :-1] -= 2 * right
    return out


@pytest.mark.parametrize(("case", "dtype"), FUSED)
def test_programs_of_parts(rng: Any, case: str, dtype: str) -> None:
    shape, parts = CASES[case]
    b = Builder([dtype, "bool", "int32"])
    x, chosen, n = (b.input(k) for k in range(3))
    both = b.program([b.select(chosen, x, (n.cast("float32") * 2).cast(dtype))])
    op = FusedPlacedSums((None,) * len(shape), pattern_of(shape, parts), (both,) * len(parts))
    arrays = []
    for p in parts:
        size = np.zeros(shape)[p].shape
        y = rng.normal(size=size).astype(numpy_dtype(dtype))
        y[rng.random(size) < 0.1] = np.nan
        arrays += [y, rng.random(size) < 0.5, rng.integers(-9, 9, size).astype("int32")]
    sizes = [np.asarray(n) for n in shape]
    for given in zip(*map(layouts, arrays)):
        compare(op, *given, *sizes)


@pytest.mark.parametrize("case", sorted(CASES))
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "int32"])
def test_totals_of_parts(rng: Any, case: str, dtype: str) -> None:
    """Of the first part and of the last one, which may be empty: each element once."""
    shape, parts = CASES[case]
    b = Builder([dtype, "float32"])
    x, y = (b.input(k).cast("float32") for k in range(2))
    program, square = b.program([(x + y).cast(dtype)]), b.program([x * x + y])
    acc = "float64" if dtype == "float64" else "float32"
    fold = Sum(tuple(range(len(shape))), False, "float32", acc)
    op = FusedPlacedSums(
        (None,) * len(shape), pattern_of(shape, parts), (program,) * len(parts),
        ((0, square, fold), (len(parts) - 1, square, fold)),
    )  # fmt: skip
    arrays = []
    for part in parts:
        size = np.zeros(shape)[part].shape
        arrays += [(rng.normal(size=size) * 3).astype(numpy_dtype(dtype))]
        arrays += [rng.normal(size=size).astype("float32")]
    given = [*(device_copy(a)[1] for a in arrays), *map(np.asarray, shape)]
    call, kernel = concrete(op, given), PlacedKernel()
    assert kernel.refuses(call) is None
    results, _ = emulator.run(kernel, call, given)
    for got, wanted in zip(results, op.compute(*given), strict=True):
        np.testing.assert_allclose(
            got.astype("float64"), np.asarray(wanted, "float64"), rtol=1e-2 if dtype == "bfloat16"
            else 1e-4, atol=1e-3,
        )  # fmt: skip


@pytest.mark.parametrize("shape", [(2, 3, 20, 33), (1, 1, 1, 40), (0, 2, 5, 5), (2, 1, 7, 1)])
def test_the_gradient_of_differences_is_one_kernel(
    fake_device: Any,  # noqa: F811
    rng: Any,
    shape: Any,
) -> None:
    """In sizes that only a call knows, against NumPy; and its own gradient."""
    x, w = T.dtensor4("x"), T.dtensor4("w")
    cost = ((x[:, :, 1:] - x[:, :, :-1]) ** 2).sum() + ((x[..., 1:] - x[..., :-1]) ** 2).sum()
    slope = symdnn.grad(cost, x)
    f = symdnn.function([x], slope, mode=symdnn.Mode(target="cuda:sm_90"))
    ops = [type(n.op).__name__ for n in f.fgraph.toposort()]
    assert ops.count("FusedPlacedSums") == 1
    assert not {"FusedElemwise", "IncSubtensor", "Alloc"} & {*ops}
    data, weights = rng.normal(size=shape), rng.normal(size=shape)
    np.testing.assert_allclose(np.asarray(f(data)), differences(data), atol=1e-12)
    second = symdnn.grad((slope * w).sum(), x)
    mode = symdnn.Mode(target="cuda:sm_90")
    g = symdnn.function([x, w], second, mode=mode, on_unused_input="ignore")
    np.testing.assert_allclose(np.asarray(g(data, weights)), differences(weights), atol=1e-12)


def test_a_loss_beside_its_gradient(fake_device: Any, rng: Any) -> None:  # noqa: F811
    """Reductions leave first; what only the gradient needs then becomes a part of its kernel, and
    the sums, of the same operands, follow it."""
    x = T.TensorType("float32", (2, 3, 12, 20))("x")
    cost = T.abs(x[:, :, 1:] - x[:, :, :-1]).sum() + T.abs(x[..., 1:] - x[..., :-1]).sum()
    slope = symdnn.grad(cost, x)
    f = symdnn.function([x], [cost, slope], mode=symdnn.Mode(target="cuda:sm_90"))
    ops = [type(n.op).__name__ for n in f.fgraph.toposort()]
    assert ops.count("FusedPlacedSums") == 1
    assert not any("Reduce" in op for op in ops)
    a = rng.normal(size=(2, 3, 12, 20)).astype("float32")
    value, got = f(a)
    down, right = np.diff(a, axis=2), np.diff(a, axis=3)
    np.testing.assert_allclose(value, np.abs(down).sum() + np.abs(right).sum(), rtol=1e-5)
    wanted = np.zeros_like(a)
    for axis, change in ((2, np.sign(down)), (3, np.sign(right))):
        ends = [(0, 0)] * 4
        ends[axis] = (1, 1)
        wanted -= np.diff(np.pad(change, ends), axis=axis)
    np.testing.assert_array_equal(np.asarray(got), wanted)


def test_the_source_compiles_for_a_device(rng: Any) -> None:
    shape, parts = CASES["backwards"]
    b = Builder(["float16", "float16"])
    x, y = (b.input(k).cast("float32") for k in range(2))
    program = b.program([(x * y).cast("float16")])
    total = (0, program, Sum((0, 1), False, "float32", "float32"))
    op = FusedPlacedSums(shape, pattern_of(shape, parts), (program,) * len(parts), (total,))
    arrays = [np.ones(np.zeros(shape)[p].shape, "float16") for p in parts for _ in range(2)]
    call = concrete(op, [*arrays, *map(np.asarray, shape)])
    for source in PlacedKernel().sources(call, shape):
        assert compile_cubin(source, (9, 0))
