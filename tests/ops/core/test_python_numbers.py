"""Python numbers beside arrays (flag ``cast_policy``): NumPy 2's rule, with floatX for float64."""

import warnings

import ml_dtypes
import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.config import config
from symdnn.errors import NumberOutOfRange, SymdnnError
from symdnn.graph.evaluate import evaluate
from symdnn.graph.traverse import graph_inputs
from symdnn.graph.type import numpy_dtype
from symdnn.ops.core import python_numbers

pytestmark = pytest.mark.skipif(int(np.__version__[0]) < 2, reason="NumPy 2's rule")

REAL = ["bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64",
        "float16", "float32", "float64"]  # fmt: skip
DTYPES = [*REAL, "complex64", "complex128"]
#: Public functions of two operands, and NumPy's.
FUNCTIONS = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "true_div": np.true_divide,
    "int_div": np.floor_divide, "mod": np.mod, "pow": np.power, "maximum": np.maximum,
    "minimum": np.minimum, "lt": np.less, "le": np.less_equal, "gt": np.greater,
    "ge": np.greater_equal, "eq": np.equal, "neq": np.not_equal, "bitwise_and": np.bitwise_and,
    "bitwise_or": np.bitwise_or, "bitwise_xor": np.bitwise_xor, "left_shift": np.left_shift,
    "right_shift": np.right_shift, "arctan2": np.arctan2,
    "switch": lambda a, b: np.where(np.ones(2, bool), a, b),
    "clip": lambda a, b: np.clip(a, b, b),
}  # fmt: skip
SYMBOLIC = {
    "switch": lambda a, b: T.switch(T.constant(np.ones(2, bool)), a, b),
    "clip": lambda a, b: T.clip(a, b, b),
}


def number(rng):
    """A Python number, a NumPy scalar or an array of no dimensions."""
    python = [True, int(rng.integers(0, 100)), float(rng.uniform(0.1, 2)), 2.5 + 1j]
    kind = rng.integers(3)
    if kind == 0:
        return python[rng.integers(len(python))]
    scalar = np.ones((), DTYPES[rng.integers(len(DTYPES))])
    return scalar[()] if kind == 1 else scalar


def numpys(function, a, b):
    """The dtype that NumPy gives; None where it refuses."""
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return FUNCTIONS[function](a, b).dtype.name
        except (TypeError, ValueError, OverflowError):
            return None


def ours(function, a, b):
    try:
        return SYMBOLIC.get(function, getattr(T, function, None))(a, b).dtype
    except (SymdnnError, OverflowError):
        return None


def wanted(function, a, b, x):
    """NumPy's dtype, but floatX where it gives ints and Python floats, or quotients, float64."""
    found = numpys(function, a, b)
    other = b if a is x else a
    python = isinstance(other, int | float | complex) and not isinstance(other, np.generic)
    discrete = x.dtype.kind in "biu" and (python or other.dtype.kind in "biu")
    floating = function in ("true_div", "arctan2") and discrete
    weak = python and not isinstance(other, bool) and x.dtype.kind in "biu"
    if discrete and {x.dtype.name, np.asarray(other).dtype.name} >= {"uint64"} and not python:
        signed = "i" in (x.dtype.kind, np.asarray(other).dtype.kind)
        if signed:
            return found  # what two ints have in common is float64 then
    if str(found).startswith("float") and (floating or (weak and isinstance(other, float))):
        return config.floatX
    if found == "complex128" and weak:
        return "complex64" if config.floatX == "float32" else found
    return found


@pytest.mark.parametrize("floatX", ["float32", "float64"])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_dtypes_are_numpys(function, floatX, rng):
    differing = []
    with config.change_flags(floatX=floatX, cast_policy="numpy2"):
        for _ in range(120):
            dtype, other = DTYPES[rng.integers(len(DTYPES))], number(rng)
            array, v = np.ones(2, dtype), T.TensorType(dtype, (2,))()
            pairs = [(array, other, v, other), (other, array, other, v)]
            a, b, *operands = pairs[rng.integers(2) if function != "clip" else 0]
            got, want = ours(function, *operands), wanted(function, a, b, array)
            if got != want and not known(function, dtype, other, got, want):
                differing.append((dtype, repr(other), "found", got, "NumPy", want))
    assert not differing


def known(function, dtype, other, got, want):
    """What symdnn does otherwise, whatever the numbers are (docs/theano.md)."""
    kinds = {np.dtype(dtype).kind, np.asarray(other).dtype.kind}
    if got is None or want is None:
        # It takes complex numbers where they are ordered, and bools where NumPy refuses them;
        # what is refused of ints (a shift of floats) is refused of all.
        return bool(kinds & {"c", "b"}) or refused_of_uint64(function, dtype, other)
    return kinds == {"b"}  # of two bools: int8 as in Theano, or their and


def refused_of_uint64(function, dtype, other):
    """NumPy refuses bits of uint64 and signed ints; here a constant that is not negative goes."""
    names = {dtype, np.asarray(other).dtype.name}
    return function.startswith(("bitwise", "left", "right")) and "uint64" in names


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "float64"])
@pytest.mark.parametrize("value", [1, 2, 0.5, 0.1, -3.7, True, 70000, 2**70])
def test_a_float_array_keeps_its_dtype(dtype, value):
    x = T.TensorType(dtype, (None,))("x")
    made = [
        x + value, value - x, x * value, x / value, value / x, x**2, 2**x, T.maximum(x, value),
        T.switch(x > value, x, value), T.clip(x, -value, value), T.set_subtensor(x[0], value),
        T.inc_subtensor(x[:1], value), T.full_like(x, value), T.stack([x[0], value]),
        T.nnet.relu(x, 0.1), T.nnet.elu(x, 0.3), T.mean(x) * value,
        T.join(0, x, T.constant([1.0], dtype=dtype)) + value,
    ]  # fmt: skip
    with config.change_flags(cast_policy="numpy2"):
        assert {v.dtype for v in made} == {dtype}


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64",
                                   "uint64"])  # fmt: skip
def test_ints_out_of_range(dtype):
    x = T.TensorType(dtype, (None,))("x")
    info = np.iinfo(dtype)
    a = np.array([info.min, 0, 1, info.max], dtype)
    for value in (info.min - 1, info.max + 1, 2**70, -(2**70)):
        for make in (lambda v: x + v, lambda v: v * x, lambda v: T.maximum(x, v),
                     lambda v: T.clip(x, 0, v), lambda v: T.set_subtensor(x[0], v)):  # fmt: skip
            with pytest.raises(NumberOutOfRange, match="out of the range"):
                make(value)
        compared = [x < value, x <= value, x > value, x >= value, T.eq(x, value), T.neq(x, value)]
        below = value > info.max
        found = symdnn.function([x], compared)(a)
        for got, want in zip(found, (below, below, not below, not below, False, True)):
            assert (got == want).all()
    assert issubclass(NumberOutOfRange, OverflowError)
    np.testing.assert_array_equal((x < info.max).eval({x: a}), a < info.max)


@pytest.mark.parametrize("dtype", ["int8", "int32", "int64", "uint64"])
def test_ints_are_compared_with_floats_exactly(dtype, rng):
    x = T.TensorType(dtype, (None,))("x")
    info = np.iinfo(dtype)
    a = rng.integers(info.min, info.max, 50, dtype=dtype, endpoint=True)
    for value in (0.5, float(a[0]), float(a[1]) + 0.5, 1e10, -2.5):
        for op, name in ((np.less, "lt"), (np.equal, "eq"), (np.greater_equal, "ge")):
            found = symdnn.function([x], getattr(T, name)(x, value))(a)
            np.testing.assert_array_equal(found, op(a, value))


@pytest.mark.parametrize("floatX", ["float32", "float64"])
def test_numbers_alone(floatX):
    with config.change_flags(floatX=floatX, cast_policy="numpy2"):
        assert [T.constant(v).dtype for v in (True, 3, 0.1)] == ["bool", "int64", floatX]
        assert T.constant(1j).dtype == ("complex64" if floatX == "float32" else "complex128")
        assert T.exp(2).dtype == floatX
        assert T.switch(T.bvector(), 1, 0).dtype == "int64"
        assert T.arange(3).dtype == "int64"
        assert T.arange(0, 1, 0.25).dtype == floatX
        assert T.cast(0.1, "float64").eval() == 0.1
        assert T.full((2,), 0.1, dtype="float64").eval()[0] == 0.1
        x = T.dvector()
        assert (T.constant(0.1) * x).eval({x: [1.0]}).tolist() == [0.1]
        assert (x - T.constant(np.float32(0.1))).eval({x: [0.0]})[0] == -float(np.float32(0.1))


def test_a_constant_in_a_chain_of_16_bits_is_not_rounded(rng):
    x = T.TensorType("bfloat16", (None,))("x")
    a = rng.normal(size=2000).astype(ml_dtypes.bfloat16)
    found = symdnn.function([x], T.tanh(x * 0.3 + 0.1) * 0.7)(a).astype("f8")
    exact = np.tanh(a.astype("f8") * 0.3 + 0.1) * 0.7
    assert (np.abs(found - exact) <= np.abs(exact) * 2.0**-8 * 1.01 + 1e-6).all()


def test_theanos_rule_says_once_where_digits_are_lost(monkeypatch):
    monkeypatch.setattr(python_numbers, "_warned", [])
    x = T.dvector()
    with config.change_flags(cast_policy="custom", floatX="float32"):
        assert (T.fvector() * 0.1).dtype == "float32"
        x * 0.5
        x * 3
        x + np.float64(0.1)
        with pytest.warns(UserWarning, match="0.1 in an op with float64 is rounded to float32"):
            y = x * 0.1
        assert y.eval({x: [1.0]})[0] == float(np.float32(0.1))
        x * 0.3  # it is said once
    with config.change_flags(cast_policy="custom", floatX="float64"):
        monkeypatch.setattr(python_numbers, "_warned", [])
        assert (x * 0.1).eval({x: [1.0]})[0] == 0.1


HOLDERS = {
    "full": lambda k: T.full((3,), k),
    "full of a size": lambda k: T.full((T.lvector("n").shape[0] * 0 + 3,), k),
    "alloc": lambda k: T.alloc(k, 3),
    "stack": lambda k: T.stack([k, k, k]),
    "concatenated": lambda k: T.concatenate([T.alloc(k, 1), T.alloc(k, 2)]),
    "repeated": lambda k: T.repeat(T.alloc(k, 1), 3),
    "transposed": lambda k: T.alloc(k, 3, 1).T[0],
    "picked": lambda k: T.alloc(k, 5)[1:4],
}


@pytest.mark.parametrize("policy", ["numpy2", "custom"])
@pytest.mark.parametrize("holder", HOLDERS)
def test_an_array_of_a_number_is_no_number(holder, policy):
    """It has a dtype: what is computed with it has the dtype of both, also after rewriting."""
    x = np.float32(1.3090444803237915)
    beside = [T.fscalar("a"), T.scalar("b", dtype="float16"), T.scalar("c", dtype="int8")]
    at = [x, np.float16(x), np.int8(3)]
    with config.change_flags(cast_policy=policy):
        outs = []
        for k in (1, 70001, 0.1, True):
            v = HOLDERS[holder](k)
            outs += [f(v, b) for b in beside for f in (T.add, T.mul, T.maximum, T.true_div)]
    n = [v for v in graph_inputs(outs) if v.name == "n"]
    data = [*at, *(np.arange(2) for _ in n)]
    want = evaluate(outs, dict(zip([*beside, *n], data)))
    got = symdnn.function([*beside, *n], outs)(*data)
    for out, a, b in zip(outs, got, want):
        assert a.dtype == b.dtype == out.type.numpy
        units = 4 * np.finfo(b.dtype).eps if b.dtype.kind == "f" else 0
        np.testing.assert_allclose(a.astype("f8"), b.astype("f8"), units)


SIZED = {
    "one size": lambda x: x / x.shape[0],
    "a product": lambda x: x.sum() / (2 * x.shape[0] * x.shape[1] - 1),
    "all elements": lambda x: x.sum() / x.size,
    "a choice": lambda x: T.switch(x > 0, x, x.shape[1]),
    "half of one": lambda x: x * (x.shape[1] // 2),
    "the larger": lambda x: T.maximum(x.shape[0], 2) * x,
}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("name", SIZED)
def test_sizes_are_numbers_beside_narrow_floats(rng, name, static, dtype):
    """As in NumPy, where they are Python ints; by Theano's rule they are arrays of int64."""
    f, a = SIZED[name], rng.normal(size=(3, 4)).astype(numpy_dtype(dtype))
    x = T.tensor(dtype, a.shape if static else (None, None))
    y = f(x)
    assert y.dtype == dtype
    assert symdnn.jit(f)(a).dtype == dtype
    found = symdnn.function([x], y)(a)
    assert found.dtype == dtype
    wide = symdnn.function([x], f(x.astype("float64")))(a)
    np.testing.assert_allclose(found.astype("float64"), wide, 3 * ml_dtypes.finfo(dtype).eps, 1e-6)
    if dtype == "bfloat16":
        return
    with config.change_flags(cast_policy="custom"):
        old = f(x)
    assert old.dtype == "float64"
    assert symdnn.function([x], old * 1)(a).dtype == "float64"
    n, m = T.lscalar("n"), T.fvector("m")
    assert (m * n).dtype == (m * m.nonzero()[0]).dtype == "float64"
    assert (m.astype("float16") / n).dtype == "float64"
    assert (x > x.shape[0]).dtype == "bool"


@pytest.mark.parametrize("static", [False, True])
def test_a_size_that_float16_does_not_hold_counts(static):
    a = np.full(100_000, 0.5, "float16")
    x = T.tensor("float16", a.shape if static else (None,))
    found = symdnn.function([x], [(x / x.shape[0])[0], T.sqrt(x * x.shape[0]).max()])(a)
    assert [f.dtype for f in found] == ["float16"] * 2
    assert found[0] == np.float16(0.5 / 100_000)
    assert found[1] == np.float16(50_000**0.5)
