"""Transforms of short lines in lanes: values for all sizes and layouts, independence of lines."""

from math import prod

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.config import config
from symdnn.cpu.fourier import short_lines
from symdnn.cpu.fourier.butterflies_ir import factors_of, root
from symdnn.cpu.fourier.short_lines import ShortLinesKernel
from symdnn.graph.type import TensorType
from symdnn.graph.variable import constant
from symdnn.ops.fourier.transform import FFT, InverseRealFFT, RealFFT
from tests.cpu.harness import call_of, compiled, launched

pytestmark = compiled
KERNEL = ShortLinesKernel()
TOLERANCE = {"f": 3e-6, "d": 5e-15}
#: One of each transform in straight code, with each number of passes, and with gaps in the tiles.
SIZES = [("float32", n) for n in (*range(1, 17), 22, 26, 33, 49, 64, 77, 100, 169, 1000, 1024)]
SIZES += [("float64", n) for n in (2, 3, 8, 15, 30, 64, 128, 512)]


@pytest.fixture(autouse=True)
def _all_threads(monkeypatch):
    """Wake up as many threads as may run, however little they have to do."""
    monkeypatch.setattr(short_lines, "_WORK_PER_THREAD", 1)


def numbers(rng, dtype, shape):
    x = rng.normal(size=shape)
    return (x + 1j * rng.normal(size=shape) if dtype[0] == "c" else x).astype(dtype)


def transforms(axes, n, part, norm="none"):
    """Each op with its operand's dtype, the function of the operand and NumPy's."""
    complex_, name = {"float32": "complex64", "float64": "complex128"}[part], {"axes": axes}
    scale = {"none": "backward", "full": "forward", "ortho": "ortho"}[norm]
    back = {"none": "forward", "full": "backward", "ortho": "ortho"}[norm]
    return [
        (FFT(axes, norm), complex_, lambda z: np.fft.fftn(z, norm=scale, **name)),
        (FFT(axes, norm, True), complex_, lambda z: np.fft.ifftn(z, norm=back, **name)),
        (FFT(axes, norm), part, lambda x: np.fft.fftn(x, norm=scale, **name)),
        (RealFFT(axes, norm), part, lambda x: np.fft.rfftn(x, norm=scale, **name)),
        (InverseRealFFT(axes, norm, n), complex_, None),
    ]


def check(rng, op, dtype, shape, wanted):
    """The kernel's numbers beside NumPy's of float64, for one and for three threads."""
    n = shape[op.axes[-1]]
    given = shape
    if isinstance(op, InverseRealFFT):
        given = op.with_size(shape, n // 2 + 1)
        norm = {"none": "forward", "full": "backward", "ortho": "ortho"}[op.norm]
        sizes = [shape[a] for a in op.axes]
        wanted = lambda z: np.fft.irfftn(z, s=sizes, axes=op.axes, norm=norm)  # noqa: E731
    x = numbers(rng, dtype, given)
    wide = x.astype("complex128" if dtype[0] == "c" else "float64")
    right = wanted(wide)
    made = right.astype(np.result_type(dtype, "c8") if right.dtype.kind == "c" else x.real.dtype)
    inputs = (x, np.array(n)) if isinstance(op, InverseRealFFT) else (x,)
    call = call_of(op, inputs, TensorType(made.dtype.name, right.shape))
    assert KERNEL.refuses(call) is None
    bits = set()
    for count in (1, 3):
        with config.change_flags(**{"openmp.threads": count}):
            (found,) = launched(KERNEL, call, inputs)
        bits.add(found.tobytes())
    assert len(bits) == 1
    error = abs(found - right).max() / max(abs(right).max(), 1e-30)
    assert error < TOLERANCE[x.real.dtype.char], (op, shape, error)


@pytest.mark.parametrize(("part", "n"), SIZES)
def test_values_of_all_sizes(rng, part, n):
    for op, dtype, wanted in transforms((1,), n, part):
        check(rng, op, dtype, (19, n), wanted)


LAYOUTS = [
    ((3, 12), 1), ((16, 12), 1), ((2, 3, 12), 2), ((12, 4), 0), ((12, 16), 0), ((12, 35), 0),
    ((3, 12, 5, 7), 1), ((2, 15, 37), 1), ((40, 15), 1), ((3, 256, 9), 1), ((1, 256), 1),
]  # fmt: skip


@pytest.mark.parametrize("part", ["float32", "float64"])
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_values_of_lines_that_are_dense_and_across(rng, part, layout):
    shape, axis = layout
    for op, dtype, wanted in transforms((axis,), shape[axis], part):
        check(rng, op, dtype, shape, wanted)


@pytest.mark.parametrize("norm", ["none", "ortho", "full"])
@pytest.mark.parametrize("axes", [(0, 1, 2), (2, 0), (1, 2)], ids=str)
def test_values_along_several_axes(rng, axes, norm):
    shape = (6, 10, 8)
    for op, dtype, wanted in transforms(axes, shape[axes[-1]], "float32", norm):
        check(rng, op, dtype, shape, wanted)


def test_a_line_has_the_same_bits_whatever_its_neighbours_are(rng):
    z = numbers(rng, "complex64", (21, 24))
    op = FFT((1,))
    (alone,) = launched(KERNEL, call_of(op, (z[4:5],), TensorType("complex64", (1, 24))), (z[4:5],))
    z[3], z[5] = np.nan, np.inf
    (found,) = launched(KERNEL, call_of(op, (z,), TensorType("complex64", z.shape)), (z,))
    assert found[4].tobytes() == alone[0].tobytes()
    assert np.isnan(found[3]).all()
    assert np.isfinite(found[[*range(3), 4, *range(6, 21)]]).all()


def test_what_is_left_to_pocketfft():
    for shape, axes in [
        ((9, 17), (1,)), ((9, 34), (1,)), ((9, 8192), (1,)), ((9, 8, 3), (1,)), ((2, 512), (1,)),
        ((9, 8, 17), (1, 2)),
    ]:  # fmt: skip
        z = np.zeros(shape, "complex64")
        call = call_of(FFT(axes), (z,), TensorType("complex64", shape))
        assert KERNEL.refuses(call), shape


def test_factors_and_roots():
    for n in range(1, 400):
        factors = factors_of(n)
        small = all(n % p for p in range(17, n + 1) if all(p % d for d in range(2, p)))
        assert (factors is not None) == small
        assert factors is None or prod(factors) == n
        for k in (0, 1, n // 3, n // 2, n - 1):
            found = complex(*root(k, n))
            assert abs(found - np.exp(2j * np.pi * (k / n))) < 3e-15
            assert complex(*root(-k, n)) == found.conjugate()


def test_a_function_runs_it_for_any_strides_and_in_place(rng):
    z, n = T.cmatrix("z"), constant(16)
    f = symdnn.function([z], [T.fft.fft(z * 2), T.fft.irfft(z, n), T.fft.rfft(z.real)])
    x = numbers(rng, "complex64", (40, 9))
    for given in (x, x[::-1], np.asfortranarray(x), numbers(rng, "complex64", (80, 9))[::2]):
        wide = given.astype("complex128")
        right = np.fft.fft(wide * 2), np.fft.irfft(wide, 16), np.fft.rfft(wide.real)
        for found, wanted in zip(f(given), right, strict=True):
            np.testing.assert_allclose(found, wanted, atol=2e-5)
    kernels = str(f.lowering_report())
    assert kernels.count("llvm.fourier") == 3
    (plan,) = f.plans()
    (node,) = (k for k in f.fgraph.apply_nodes if isinstance(k.op, FFT))
    assert node in {k for k, taken in plan.memory.in_place.items() if taken}
