"""Kernels of complex numbers: their text compiles, and agrees with NumPy on a CPU."""

from __future__ import annotations

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn import Mode
from symdnn.gpu import registry
from symdnn.gpu.binding.nvrtc import compile_cubin
from symdnn.gpu.kernels.complex import ComplexKernel, complex_program
from symdnn.graph.evaluate import evaluate
from symdnn.graph.kernel import kernels_for
from symdnn.graph.type import TensorType
from symdnn.graph.variable import Constant
from symdnn.ops.elementwise import arithmetic as ar
from symdnn.ops.elementwise import comparison as cmp
from symdnn.ops.elementwise import complexes as cx
from symdnn.ops.elementwise import math as mt
from symdnn.ops.lowered.fused import FusedComplex
from symdnn.ops.lowered.transfer import GpuFromHost, HostFromGpu
from tests.gpu import emulator
from tests.gpu.recorder import CAPABILITIES
from tests.gpu.table import concrete

registry.load()

UNARY = (
    ar.Neg, ar.Sqr, ar.Inv, ar.Sqrt, ar.Abs, cx.Conj, cx.Real, cx.Imag, cx.Angle, mt.Exp, mt.Log,
    mt.Log2, mt.Log10, mt.Log1p, mt.Expm1, mt.Sin, mt.Cos, mt.Tan, mt.Sinh, mt.Cosh, mt.Tanh,
    mt.ArcSin, mt.ArcCos, mt.ArcTan, mt.ArcSinh, mt.ArcCosh, mt.ArcTanh, cmp.IsNan, cmp.IsInf,
    cmp.IsFinite,
)  # fmt: skip
BINARY = (ar.Add, ar.Sub, ar.Mul, ar.TrueDiv, ar.Pow, cmp.Eq, cmp.Neq)
LIMIT = {"complex64": 2e-5, "complex128": 1e-12}
COMPLEX = tuple(LIMIT)


def draw(dtype, *shape, seed=0):
    """Numbers on and off the axes, zeros among them."""
    rng = np.random.default_rng((seed, *shape))
    if dtype == "bool":
        return rng.standard_normal(shape) > 0
    if not dtype.startswith("complex"):
        return (rng.standard_normal(shape) * 3).astype(dtype)
    z = rng.standard_normal(shape) + 1j * rng.standard_normal(shape)
    flat = z.reshape(-1)
    flat[:4] = [0, 1.5, -2.0, 2.5j][: flat.size]
    return z.astype(dtype)


def check(op, *arrays, rtol=None):
    call = concrete(op, list(arrays))
    (kernel,) = (k for k in kernels_for(type(op), "cuda") if k.refuses(call) is None)
    assert isinstance(kernel, ComplexKernel)
    (got,), _ = emulator.run(kernel, call, list(arrays))
    with np.errstate(all="ignore"):
        want = np.asarray(op.compute(*arrays)[0])
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    limit = rtol or max(LIMIT[a.dtype.name] for a in (*arrays, want) if a.dtype.name in LIMIT)
    np.testing.assert_allclose(got, want, rtol=limit, atol=limit)


emulates = pytest.mark.skipif(not emulator.AVAILABLE, reason="g++ is not there")


@emulates
@pytest.mark.parametrize("dtype", COMPLEX)
@pytest.mark.parametrize("op", UNARY)
def test_functions_of_one_operand(op, dtype):
    values = draw(dtype, 5, 7)
    if op in (mt.Log, mt.Log2, mt.Log10, ar.Inv):
        values[values == 0] = 1
    check(op(), values)


INVERSES = mt.ArcSin, mt.ArcCos, mt.ArcTan, mt.ArcSinh, mt.ArcCosh, mt.ArcTanh


@emulates
@pytest.mark.parametrize("op", [*INVERSES, mt.Tan, mt.Tanh, mt.Expm1])
def test_functions_near_their_cuts_small_and_large(op):
    """Both sides of each cut, by the sign of a zero; parts are compared by themselves."""
    sizes = np.array([1e-12, 1e-3, 0.3, 0.9999, 1.5, 40.0, 300.0])
    signed = np.concatenate([sizes, -sizes])
    zero = [complex(x, y) for x in signed for y in (0.0, -0.0, 1e-9, -0.7)]
    across = [complex(y, x) for x in signed for y in (0.0, -0.0, 1e-9, -0.7)]
    values = np.array([*zero, *across])
    call = concrete(op(), [values])
    (got,), _ = emulator.run(ComplexKernel(), call, [values])
    with np.errstate(all="ignore"):
        want = op().compute(values)[0]
    for part in (np.real, np.imag):
        np.testing.assert_allclose(part(got), part(want), rtol=1e-9, atol=1e-15)
        wrong = np.signbit(part(got)) != np.signbit(part(want))
        assert not wrong.any(), (values[wrong][:4], got[wrong][:4], want[wrong][:4])


@emulates
@pytest.mark.parametrize("dtype", COMPLEX)
@pytest.mark.parametrize("other", ["complex128", "float32", "int8"])
@pytest.mark.parametrize("op", BINARY)
def test_functions_of_two_operands(op, dtype, other):
    a, b = draw(dtype, 4, 6), draw(other, 1, 6, seed=1)
    if op is ar.TrueDiv:
        b[b == 0] = 1
    if op is ar.Pow:
        a[a == 0] = 2
    check(op(), a, b)


@emulates
@pytest.mark.parametrize("dtype", COMPLEX)
def test_building_choosing_converting(dtype):
    part = "float32" if dtype == "complex64" else "float64"
    check(cx.Complex(), draw(part, 3, 5), draw(part, 1, 5, seed=1))
    check(cmp.Switch(), draw("bool", 3, 5), draw(dtype, 3, 5), draw(part, 3, 1, seed=1))
    other = "complex128" if dtype == "complex64" else "complex64"
    for source in (other, "float16", "int32", "bool"):
        check(ar.Cast(dtype), draw(source, 3, 5), rtol=1e-3)


@emulates
def test_quotients_of_large_and_small_numbers():
    big = np.array([1e300 + 1e300j, 1e-300 - 1e-300j, 3 + 4j], "complex128")
    check(ar.TrueDiv(), big, big)
    check(ar.Abs(), big)
    check(cmp.IsNan(), np.array([complex(np.nan, 0), complex(0, np.nan), 1], "complex128"))


@emulates
def test_strided_operands():
    whole = emulator.device_copy(draw("complex64", 8, 9))[1]
    check(ar.Mul(), whole[::2, ::-1], whole[:4, :1])


@emulates
def test_results_between_others():
    """What is made in a join, by the kernel that writes no padding."""
    x = draw("complex64", 4, 6)
    call, made = concrete(cx.Real(), [x]), emulator.device_copy(np.full((4, 9), 7, "float32"))[1]
    env, part = emulator.HostEnv(), made[:, 1:7]
    bound = ComplexKernel().bind_beside(call)
    bound(env, [emulator.on_device(x)], [emulator.on_device(part)])
    np.testing.assert_array_equal(part, x.real)
    np.testing.assert_array_equal(np.delete(made, np.s_[1:7], 1), 7)


def test_what_has_no_text_is_refused():
    call = concrete(cmp.Switch(), [draw("complex64", 3)] * 3)  # by a complex condition
    reasons = [k.refuses(call) for k in kernels_for(cmp.Switch, "cuda")]
    assert any("no device text for complex" in str(r) for r in reasons)
    assert None not in reasons
    assert complex_program(ar.Add(), ["float32", "complex64"]) is not None


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_the_text_compiles(capability):
    calls = [concrete(op(), [draw("complex64", 4, 6) + 2]) for op in UNARY[::4]]
    calls += [
        concrete(op(), [draw(d, 4, 6) + 2] * 2) for op in (ar.TrueDiv, ar.Pow) for d in COMPLEX
    ]
    for call in calls:
        for source in ComplexKernel().sources(call):
            assert compile_cubin(source, capability)


def fused_on_the_gpu(dtype):
    """A function of complex and real operands with complex and real results: its one node."""
    z, x = TensorType(dtype, (None, None))("z"), T.matrix("x", dtype="float32")
    made = cx.conj(z * x + 1j) / (z - 2)
    with symdnn.config.change_flags(assert_lowered="raise"):
        f = symdnn.function([z, x], [made, ar.abs(made)], mode=Mode(target="cuda:sm_90"))
    (node,) = (n for n in f.fgraph.nodes if not isinstance(n.op, GpuFromHost | HostFromGpu))
    return node


@emulates
@pytest.mark.parametrize("dtype", COMPLEX)
def test_complex_arithmetic_is_one_kernel_on_the_gpu(dtype):
    node, z, x = fused_on_the_gpu(dtype), draw(dtype, 5, 7), draw("float32", 5, 7, seed=1)
    assert isinstance(node.op, FusedComplex)
    arrays = [z, x, *(v.data for v in node.inputs if isinstance(v, Constant))]
    call = concrete(node.op, arrays)
    (kernel,) = (k for k in kernels_for(FusedComplex, "cuda") if k.refuses(call) is None)
    found, _ = emulator.run(kernel, call, arrays)
    wanted = np.conj(z * x + 1j) / (z - 2)
    for got, want in zip(found, [wanted, abs(wanted)], strict=True):
        np.testing.assert_allclose(got, want, rtol=LIMIT["complex64"])


@pytest.mark.parametrize("dtype", COMPLEX)
def test_sums_of_complex_numbers_are_on_the_gpu(dtype):
    z, x = TensorType(dtype, (None, None))("z"), T.matrix("x")
    outs = [T.sum(z * x, axis=0), T.sum(z, keepdims=True), T.mean(z)]
    with symdnn.config.change_flags(assert_lowered="raise"):
        f = symdnn.function([z, x], outs, mode=Mode(target="cuda:sm_90"))
    inputs = [draw(dtype, 5, 7), draw("float32", 5, 7, seed=1).astype(x.type.dtype)]
    found = evaluate(f.fgraph.outputs, dict(zip(f.fgraph.inputs, inputs, strict=True)))
    wanted = (inputs[0] * inputs[1]).sum(0), inputs[0].sum(keepdims=True), inputs[0].mean()
    for got, want, out in zip(found, wanted, outs, strict=True):
        assert got.dtype == out.type.dtype
        np.testing.assert_allclose(got, want, rtol=LIMIT[dtype])


@emulates
@pytest.mark.parametrize("dtype", COMPLEX)
def test_increments_of_parts_of_complex_arrays(dtype):
    """Real and imaginary parts are added as one more axis, of strided operands too."""
    x, y = draw(dtype, 6, 5), draw(dtype, 3, 2, seed=1)
    node = T.inc_subtensor(TensorType(dtype, x.shape)()[::2, 1:-2], TensorType(dtype, y.shape)())
    op = node.owner.op
    for value, part in ((x, y), (x.T.copy().T, y.T.copy().T)):
        call = concrete(op, [value, part])
        (kernel,) = (k for k in kernels_for(type(op), "cuda") if k.refuses(call) is None)
        (found,), _ = emulator.run(kernel, call, [value, part])
        wanted = value.copy()
        wanted[::2, 1:-2] += y
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("dtype", COMPLEX)
def test_increments_of_complex_numbers_are_on_the_gpu(dtype):
    x, y = TensorType(dtype, (None, None))("x"), TensorType(dtype, (None, None))("y")
    i = T.lvector("i")
    outs = [T.inc_subtensor(x[i], y), T.inc_subtensor(x[1:], y[1:]), T.set_subtensor(x[i], y)]
    with symdnn.config.change_flags(assert_lowered="raise"):
        f = symdnn.function([x, y, i], outs, mode=Mode(target="cuda:sm_90"))
    given = [draw(dtype, 3, 4), draw(dtype, 3, 4, seed=1), np.array([2, 0, 2])]
    found = evaluate(f.fgraph.outputs, dict(zip(f.fgraph.inputs, given, strict=True)))
    wanted = [given[0].copy() for _ in outs]
    np.add.at(wanted[0], given[2], given[1])
    wanted[1][1:] += given[1][1:]
    wanted[2][given[2]] = given[1]
    for got, want in zip(found, wanted, strict=True):
        assert got.dtype == want.dtype
        np.testing.assert_allclose(got, want, rtol=LIMIT[dtype])
