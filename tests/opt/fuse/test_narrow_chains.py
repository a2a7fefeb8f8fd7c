"""Fused chains of float16 and bfloat16: computed in float32, rounded once where they are stored."""

import ml_dtypes
import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.config import config
from symdnn.gpu.kernels import elementwise as elementwise_kernels
from symdnn.gpu.kernels import reduce as reduce_kernels
from symdnn.ops.elemwise import Elemwise
from symdnn.ops.lowered.fused import FusedElemwise, FusedReduce
from tests.gpu import emulator
from tests.gpu.table import concrete

NARROW = {"float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
#: Digits of the mantissa, the hidden one included.
DIGITS = {"float16": 11, "bfloat16": 8}
CPU = symdnn.Mode(target="cpu")

SMOOTH = [
    T.tanh, T.nnet.sigmoid, T.nnet.softplus, T.erf, T.sin, T.sqr, T.nnet.silu, T.neg, T.nnet.gelu,
    lambda v: T.exp(-v * v), lambda v: T.sqrt(v * v + one(v)), lambda v: v / (v * v + one(v)),
    lambda v: T.nnet.gelu(v, approximate=True),
]  # fmt: skip


def one(v):
    return T.constant(1, dtype=v.dtype)


def chain(rng, x, y):
    """An expression of some smooth functions, both variables, and constants no dtype has."""
    v = x
    for _ in range(rng.integers(2, 7)):
        kind = rng.integers(5)
        if kind == 0:
            v = v * T.constant(rng.uniform(0.3, 1.5), dtype=v.dtype)
        elif kind == 1:
            v = v + T.constant(rng.normal(), dtype=v.dtype) * y
        else:
            v = SMOOTH[rng.integers(len(SMOOTH))](v)
    return v


def variables(dtype):
    return [T.TensorType(dtype, (None, None))(name) for name in ("x", "y", "dy")]


def values(rng, dtype, shape=(37, 53)):
    return [rng.normal(size=shape).astype(NARROW[dtype]) for _ in range(3)]


def unit(exact, digits, dtype):
    """The distance of neighbours of 16 bits around each number."""
    smallest = {"float16": -24, "bfloat16": -133}[dtype]
    return 2.0 ** np.maximum(np.frexp(exact)[1] - digits, smallest)


def assert_rounded_once(found, exact, dtype, noise=0):
    """Half a unit off, and by what rounding in float32 on the way there makes (``noise``)."""
    assert found.dtype == NARROW[dtype]
    noise = noise + 3e-5 * np.abs(exact) + 1e-6 * np.abs(exact).max()
    off = np.abs(found.astype("f8") - exact) - noise
    assert (off <= 0.5 * unit(exact, DIGITS[dtype], dtype)).all()


def program(seed, dtype, **more):
    """Value and gradient of a chain; with float64 the same of unrounded constants."""
    x, y, dy = variables(dtype)
    made = chain(np.random.default_rng(seed), x, y)
    assert made.dtype == dtype
    grads = T.grad(None, [x, y], known_grads={made: dy}, disconnected_inputs="ignore")
    return symdnn.function([x, y, dy], [made, *grads], on_unused_input="ignore", **more)


def exactly(seed, arrays, rng):
    """(exact, noise) of each result: four times the error of float32 at inputs half a unit off."""
    plain = symdnn.Mode(optimizer=None, target="cpu")
    exact = program(seed, "float64", mode=plain)(*(a.astype("f8") for a in arrays))
    single, noise = program(seed, "float32", mode=plain), [np.zeros(e.shape) for e in exact]
    for _ in range(6):
        moved = (a.astype("f8") * (1 + 2.0**-24 * rng.uniform(-1, 1, a.shape)) for a in arrays)
        found = single(*(a.astype("f4") for a in moved))
        noise = [np.maximum(n, 4 * np.abs(f - e)) for n, f, e in zip(noise, found, exact)]
    return list(zip(exact, noise, strict=True))


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("compiled", ["always", "auto"])
@pytest.mark.parametrize("case", range(6))
def test_values_and_gradients(case, compiled, dtype, rng):
    arrays, nodes = values(rng, dtype), [0, 0]
    while len(nodes) > 1:  # some chains are too long for one kernel
        seed = rng.integers(1 << 32)
        nodes = fused(program(seed, dtype, mode=CPU), FusedElemwise | Elemwise)
    with config.change_flags({"cpu.compile": compiled}):
        found = program(seed, dtype, mode=CPU)(*arrays)
    for got, (exact, noise) in zip(found, exactly(seed, arrays, rng), strict=True):
        assert_rounded_once(got, exact, dtype, noise)


def fused(f, kind):
    return [n for n in f.fgraph.toposort() if isinstance(n.op, kind)]


def by_emulator(kernel, op, arrays):
    call = concrete(op, list(arrays))
    assert kernel.refuses(call) is None
    results, env = emulator.run(kernel, call, list(arrays))
    assert env.error[0] == 0
    return results


needs_emulator = pytest.mark.skipif(not emulator.AVAILABLE, reason="needs g++")


@needs_emulator
@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("case", range(3))
def test_the_device_does_the_same(case, dtype, rng):
    arrays, nodes = values(rng, dtype), []
    while len(nodes) != 1 or not isinstance(nodes[0].op, FusedElemwise):  # some are two kernels
        seed = rng.integers(1 << 32)
        nodes = fused(program(seed, dtype, mode=CPU), FusedElemwise | Elemwise)
    (node,) = nodes
    given = [arrays["xy".index(v.name) if v.name in "xy" else 2] for v in node.inputs]
    found = by_emulator(elementwise_kernels.ElementwiseKernel(), node.op, given)
    for got, (exact, noise) in zip(found, exactly(seed, arrays, rng)):
        assert_rounded_once(got, exact, dtype, noise)


@needs_emulator
@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("axis", [0, 1, None])
def test_sums_of_chains_round_once(axis, dtype, rng):
    x, y, _ = variables(dtype)
    made = (T.tanh(x * y) * T.constant(0.3, dtype=dtype)).sum(axis)
    f = symdnn.function([x, y], made, mode=CPU)
    (node,) = fused(f, FusedReduce)
    arrays = values(rng, dtype)[:2]
    a, b = (v.astype("f8") for v in arrays)
    exact = (np.tanh(a * b) * 0.3).sum(axis)
    assert_rounded_once(f(*arrays), exact, dtype)
    given = [arrays["xy".index(v.name)] for v in node.inputs]
    (found,) = by_emulator(reduce_kernels.ReductionKernel(), node.op, given)
    assert_rounded_once(np.asarray(found), exact, dtype)
    (reference,) = node.op.compute(*given)
    assert_rounded_once(np.asarray(reference), exact, dtype)


# -- what sees the stored number ------------------------------------------------------------------


@pytest.mark.parametrize("dtype", NARROW)
def test_what_decides_sees_what_is_stored(dtype, rng):
    x, y, _ = variables(dtype)
    v = T.tanh(x) * y
    outs = [v, T.eq(v, y), v < y, T.floor(v), T.cast(v, "int32"), T.sgn(v), T.isinf(v * v)]
    f = symdnn.function([x, y], outs, mode=CPU)
    a, b = values(rng, dtype)[:2]
    b = np.where(rng.uniform(size=b.shape) < 0.5, b * NARROW[dtype].type(3), b).astype(b.dtype)
    with config.change_flags({"cpu.compile": "always"}):
        stored, equal, less, low, whole, sign, _ = f(a, b)
        same = np.where(rng.uniform(size=b.shape) < 0.5, stored, b).astype(b.dtype)
        np.testing.assert_array_equal(equal, stored == b)
        np.testing.assert_array_equal(less, stored < b)
        np.testing.assert_array_equal(low.astype("f4"), np.floor(stored.astype("f4")))
        np.testing.assert_array_equal(whole, stored.astype("f4").astype("int32"))
        np.testing.assert_array_equal(sign.astype("f4"), np.sign(stored.astype("f4")))
        z = T.TensorType(dtype, (None, None))("z")
        again = symdnn.function([x, y, z], T.eq(T.tanh(x) * y, z), mode=CPU)(a, b, same)
        np.testing.assert_array_equal(again, stored == same)


def test_an_overflow_is_seen_in_the_kernel_that_makes_it():
    x = T.TensorType("float16", (None,))("x")
    v = x * x
    f = symdnn.function([x], [v, T.isinf(v), T.isinf(v).any()], mode=CPU)
    with np.errstate(all="ignore"):
        stored, inf, some = f(np.array([100, 300, 1], np.float16))
    np.testing.assert_array_equal(inf, np.isinf(stored))
    assert inf.tolist() == [False, True, False]
    assert some


@pytest.mark.parametrize("dtype", NARROW)
def test_the_gradient_of_an_extreme_finds_its_element(dtype, rng):
    x = T.TensorType(dtype, (None, None))("x")
    f = symdnn.function([x], T.grad(T.max(T.tanh(x) * one(x) * x, axis=1).sum(), x), mode=CPU)
    (a, *_) = values(rng, dtype)
    with config.change_flags({"cpu.compile": "always"}):
        assert ((f(a) != 0).sum(1) >= 1).all()


@pytest.mark.parametrize("dtype", NARROW)
def test_casts_that_the_user_wrote_round(dtype, rng):
    x = T.matrix("x", dtype="float32")
    high = x.astype(dtype)
    low = (x - high.astype("float32")).astype(dtype)
    f = symdnn.function([x], [high, low], mode=CPU)
    a = rng.normal(size=(37, 53)).astype("f4")
    with config.change_flags({"cpu.compile": "always"}):
        found = f(a)
    want = a.astype(NARROW[dtype])
    np.testing.assert_array_equal(found[0].astype("f4"), want.astype("f4"))
    rest = (a - want.astype("f4")).astype(NARROW[dtype])
    np.testing.assert_array_equal(found[1].astype("f4"), rest.astype("f4"))
