from __future__ import annotations

import ml_dtypes
import mpmath
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import special

import symdnn.ops  # noqa: F401
from symdnn.autodiff import Rop, grad
from symdnn.config import config
from symdnn.errors import NonDifferentiable, ShapeMismatch, TypeMismatch
from symdnn.graph.evaluate import evaluate
from symdnn.graph.type import TensorType
from symdnn.graph.variable import constant
from symdnn.tensor import elementwise as E

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def var(dtype="float64", *shape, name="x"):
    return TensorType(dtype, shape)(name)


def value(out, values=None):
    return evaluate([out], values or {})[0]


def slope_at(f, *points, dtype="float64"):
    """The gradients of sum(f(...)) at these points."""
    arrays = [np.asarray(p, dtype) for p in points]
    vs = [var(dtype, *([None] * a.ndim), name=f"v{i}") for i, a in enumerate(arrays)]
    return evaluate(grad(f(*vs).sum(), vs, disconnected_inputs="ignore"), dict(zip(vs, arrays)))


# --- dtypes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("build", "dtypes", "wanted"),
    [
        (E.add, ("float32", "int32"), "float64"),
        (E.add, ("float32", "int8"), "float32"),
        (E.add, ("int8", "uint8"), "int16"),
        (E.add, ("bool", "bool"), "bool"),
        (E.add, ("bfloat16", "int64"), "bfloat16"),
        (E.add, ("bfloat16", "float16"), "float32"),
        (E.mul, ("float32", "complex64"), "complex64"),
        (E.sub, ("bool", "bool"), "int8"),
        (E.int_div, ("bool", "bool"), "int8"),
        (E.int_div, ("int32", "int8"), "int32"),
        (E.true_div, ("int32", "int8"), "float32"),
        (E.pow, ("int8", "int8"), "int8"),
        (E.exp, ("int64",), "float32"),
        (E.exp, ("float16",), "float16"),
        (E.sqr, ("int8",), "int8"),
        (E.abs, ("complex64",), "float32"),
        (E.abs, ("uint8",), "uint8"),
        (E.lt, ("float32", "int8"), "bool"),
        (E.floor, ("int8",), "int8"),
        (E.floor, ("float16",), "float16"),
        (E.iround, ("float32",), "int64"),
        (E.switch, ("float64", "int8", "float32"), "float32"),
        (E.complex, ("float32", "float16"), "complex64"),
        (E.complex, ("float32", "int32"), "complex128"),
        (E.and_, ("bool", "int8"), "int8"),
        (E.sigmoid, ("int8",), "float32"),
        (E.relu, ("int8",), "int8"),
        (E.angle, ("complex128",), "float64"),
    ],
)
def test_dtype_of_the_result(build, dtypes, wanted):
    assert build(*(var(d, 2) for d in dtypes)).dtype == wanted


def test_python_numbers_do_not_widen_float16_and_float32():
    for dtype in ("float16", "float32", "float64"):
        x = var(dtype, 3)
        for y in (x * 2, x**2, E.relu(x, 0.1), E.elu(x, 0.3), E.gelu(x), E.clip(x, -1, 1)):
            assert y.dtype == dtype
        for y in (E.hard_sigmoid(x), E.ultra_fast_sigmoid(x), E.selu(x), E.swish(x, 1.5)):
            assert y.dtype == dtype


def test_ints_become_floatx_and_cast_policy_holds():
    with config.change_flags(floatX="float64"):
        assert E.exp(var("int8")).dtype == "float64"
        assert E.true_div(var("int8"), var("int8")).dtype == "float64"
        assert E.cast(var("int8"), "floatX").dtype == "float64"
    with config.change_flags(cast_policy="numpy+floatX", floatX="float32"):
        x, n = var("float32", 2), var("int32", 2)
        assert (x + n).dtype == "float32"
        out = value(x + n, {x: np.ones(2, "float32"), n: np.ones(2, "int32")})
        np.testing.assert_array_equal(out, [2, 2])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_narrow_floats_compute_in_float32_and_keep_their_dtype(dtype):
    x = var(dtype, None)
    numpy_dtype = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    data = np.array([0.5, 1.25, 3.0, 100.0]).astype(numpy_dtype)
    wide = data.astype("float32")
    for f, g in [(E.sqr, np.square), (E.log, np.log), (E.sigmoid, lambda v: 1 / (1 + np.exp(-v)))]:
        got = value(f(x), {x: data})
        assert got.dtype == numpy_dtype
        np.testing.assert_array_equal(got, g(wide).astype(numpy_dtype))
    assert value(E.lt(x, 1), {x: data}).tolist() == [True, False, False, False]


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("build", "dtypes", "message"),
    [
        (E.neg, ("bool",), "invert"),
        (E.and_, ("float32", "int8"), "cast to an integer"),
        (E.invert, ("float32",), "integer"),
        (E.and_, ("uint64", "int64"), "common integer dtype"),
        (E.left_shift, ("bool", "int8"), "integer"),
        (E.lt, ("complex64", "float32"), "bool or integer or float"),
        (E.maximum, ("complex64", "float32"), "float"),
        (E.sgn, ("complex64",), "integer or float"),
        (E.sgn, ("bool",), "integer or float"),
        (E.floor, ("complex64",), "float"),
        (E.erf, ("complex64",), "float"),
        (E.mod, ("complex64", "int8"), "float"),
        (E.complex, ("complex64", "float32"), "float"),
    ],
)
def test_refused_dtypes_say_what_is_wanted(build, dtypes, message):
    with pytest.raises(TypeMismatch, match=message):
        build(*(var(d, 2) for d in dtypes))


def test_unknown_modes_are_refused():
    with pytest.raises(TypeMismatch, match="half_to_even"):
        E.round(var(), mode="up")
    with pytest.raises(ValueError, match="approximate"):
        E.gelu(var(), approximate="cubic")
    with pytest.raises(ValueError, match="negative integer powers"):
        value(E.pow(constant(2), constant(-1)))


def test_static_shapes_must_agree():
    with pytest.raises(ShapeMismatch, match="dimension 0"):
        var("float32", 2) + var("float32", 3)


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_a_complex_number_is_true_unless_both_parts_are_0(dtype):
    data = np.array([0, 1, 1j, -0.0, complex(0, np.nan), complex(np.inf, 0), 1e-40j], dtype)
    z = TensorType(dtype, (None,))()
    for got in (E.cast(z, "bool"), E.cast(z * 1, "bool"), E.cast(E.cast(z, "complex128"), "bool")):
        assert got.dtype == "bool"
        np.testing.assert_array_equal(value(got, {z: data}), data.astype("bool"))
    np.testing.assert_array_equal(value(E.cast(constant(data), "bool")), data.astype("bool"))


def test_unknown_size_one_does_not_broadcast():
    x, y = var("float64", None, name="x"), var("float64", None, name="y")
    op = (x + y).owner.op
    with pytest.raises(ShapeMismatch, match="addbroadcast"):
        op.shapes([x.type, y.type], [(3,), (1,)], {})


def test_comparison_has_no_truth_value_but_a_variable_has():
    x = var()
    assert x
    for test in (x < 1, E.eq(x, 1), E.isnan(x)):
        with pytest.raises(TypeError, match="truth"):
            bool(test)


def test_orders_of_special_functions():
    k, x = var(name="k"), var()
    at = {k: np.float64(1), x: np.float64(2)}
    for order in (1.0, k):
        np.testing.assert_allclose(value(grad(E.gammainc(order, x), x), at), np.exp(-2))
    slope = grad(E.gammainc(k, x), k)
    np.testing.assert_allclose(value(slope, at), -0.220825426211859, rtol=1e-12)
    second = grad(slope, k)
    np.testing.assert_allclose(value(second, at), -0.148561862457018, rtol=1e-9)
    with pytest.raises(NonDifferentiable, match="differences of differences"):
        grad(grad(grad(grad(grad(slope, k), k), k), k), k)
    assert value(grad(E.polygamma(k, x), k), at) == 0  # a whole number


# --- values at the corners ------------------------------------------------------------------------


def test_nan_passes_through_extremes():
    nan = constant(np.array([np.nan, 1.0, 2.0]))
    other = constant(np.array([1.0, np.nan, 3.0]))
    for f, last in [(E.maximum, 3.0), (E.minimum, 2.0)]:
        np.testing.assert_array_equal(value(f(nan, other)), [np.nan, np.nan, last])
    for f in (E.relu, lambda v: E.clip(v, 0, 1), E.sgn, E.abs):
        assert np.isnan(value(f(nan))[0])


def test_far_tails_are_exact():
    x = constant(np.array([-800.0, -40.0, 40.0, 800.0]))
    np.testing.assert_allclose(value(E.sigmoid(x)), [0, np.exp(-40), 1, 1], rtol=1e-12)
    np.testing.assert_allclose(value(E.softplus(x)), [0, np.exp(-40), 40, 800], rtol=1e-12)
    np.testing.assert_allclose(value(E.log_sigmoid(x)), [-800, -40, -np.exp(-40), 0], rtol=1e-12)
    np.testing.assert_allclose(value(E.elu(x)), [-1, -1, 40, 800])
    np.testing.assert_allclose(value(E.gelu(x)), [0, 0, 40, 800], atol=1e-300)
    for f in (E.sigmoid, E.softplus, E.elu, E.gelu, E.swish, E.softsign, lambda v: E.gelu(v, True)):
        assert np.isfinite(slope_at(f, x.data)[0]).all()


def test_signed_division_and_remainder_follow_python():
    a, b = np.array([7, -7, 7, -7]), np.array([2, 2, -2, -2])
    quotient, rest = E.divmod(constant(a), constant(b))
    assert value(quotient).tolist() == [x // y for x, y in zip(a.tolist(), b.tolist())]
    assert value(rest).tolist() == [x % y for x, y in zip(a.tolist(), b.tolist())]


def test_rounding_of_halves_and_near_halves():
    x = constant(np.array([-2.5, -0.5, 0.5, 1.5, 2.5, 0.49999999999999994]))
    assert value(E.round(x)).tolist() == [-2, 0, 0, 2, 2, 0]
    away = value(E.round(x, mode="half_away_from_zero"))
    assert away.tolist() == [-3, -1, 1, 2, 3, 0]


def test_shifts_by_a_number_keep_unsigned_ints():
    x = var("uint64", None)
    y = (x << 2) | 1
    assert y.dtype == "uint64"
    assert value(y, {x: np.array([3], "uint64")}).tolist() == [13]


def test_clip_tests_the_lower_bound_first():
    args = [np.array([0.0, 1.5, 5.0]), np.float64(2.0), np.float64(1.0)]
    np.testing.assert_array_equal(value(E.clip(*map(constant, args))), [2, 2, 1])
    dx, dlow, dhigh = slope_at(E.clip, *args)
    assert dx.tolist() == [0, 0, 0]
    assert (dlow, dhigh) == (2, 1)


# --- gradients at the corners ---------------------------------------------------------------------


def test_gradients_at_kinks_are_theanos():
    zero = np.zeros(2)
    assert slope_at(E.relu, zero)[0].tolist() == [0.5, 0.5]
    assert slope_at(lambda x: E.relu(x, 0.2), zero)[0].tolist() == [0.6, 0.6]
    assert slope_at(E.abs, zero)[0].tolist() == [0, 0]
    edges = np.array([-1.0, 1.0, 1.5])
    assert slope_at(lambda x: E.clip(x, -1, 1), edges)[0].tolist() == [1, 1, 0]
    assert [g.tolist() for g in slope_at(E.maximum, zero, zero)] == [[1, 1], [0, 0]]
    assert [g.tolist() for g in slope_at(E.minimum, zero, zero)] == [[1, 1], [0, 0]]


def test_powers_at_zero_have_finite_gradients():
    x = np.zeros(3)
    assert slope_at(lambda v: v**2, x)[0].tolist() == [0, 0, 0]
    assert slope_at(lambda v: v**0, x)[0].tolist() == [0, 0, 0]
    assert slope_at(lambda v: v**1, x)[0].tolist() == [1, 1, 1]
    dx, dy = slope_at(E.pow, x, np.array([0.0, 1.0, 2.0]))
    assert dx.tolist() == [0, 1, 0]
    assert dy.tolist() == [0, 0, 0]


def test_piecewise_constant_functions_have_gradient_zero():
    for f in (E.sgn, E.floor, E.ceil, E.trunc, E.round, lambda x: x // 2):
        assert slope_at(f, np.array([0.3, -1.7]))[0].tolist() == [0, 0]


def test_gradient_of_switch_goes_to_the_branch_taken():
    c = np.array([1.0, 0.0])
    assert [g.tolist() for g in slope_at(lambda x, y: E.switch(c, x, y), c, c)] == [[1, 0], [0, 1]]


def test_gradients_keep_the_dtype_of_their_variable():
    x, y = var("float32", None, name="x"), var("float64", None, name="y")
    gx, gy = grad((x * y + E.gelu(x)).sum(), [x, y])
    assert (gx.dtype, gy.dtype) == ("float32", "float64")
    assert Rop(x * y, x, np.ones(2, "float32")).dtype == "float64"
    h = var("float16", None)
    for f in (E.gelu, E.erf, E.sqrt, E.log2, E.deg2rad, E.softplus, lambda v: v**3, E.exp2):
        assert not {"float32", "float64"} & {v.dtype for v in _between(grad(f(h).sum(), h), h)}


def _between(out, stop):
    from symdnn.graph.traverse import toposort

    return [v for node in toposort([out], blockers=[stop]) for v in node.outputs]


# --- complex numbers ------------------------------------------------------------------------------


def test_convention_of_complex_gradients():
    z = var("complex128", None, name="z")
    at = {z: np.array([1 + 2j, -0.5j])}
    for cost, wanted in [
        (E.real(z), [1, 1]),
        (E.imag(z), [1j, 1j]),
        (E.sqr(E.abs(z)), 2 * at[z]),
        (E.real(z * z), 2 * at[z].conj()),
        (E.real(z * E.conj(z)), 2 * at[z]),
    ]:
        np.testing.assert_allclose(value(grad(cost.sum(), z), at), wanted)


def test_real_operand_of_a_complex_product_gets_a_real_gradient():
    x = var("float32", None)
    g = grad(E.real((x * (1 + 2j)) * (1 + 2j)).sum(), x)
    assert g.dtype == "float32"
    assert value(g, {x: np.ones(2, "float32")}).tolist() == [-3, -3]


def test_abs_of_complex_zero_has_gradient_zero():
    z = var("complex64", None)
    g = grad(E.abs(z).sum(), z)
    assert value(g, {z: np.zeros(1, "complex64")}).tolist() == [0]


def test_rop_through_complex_numbers():
    x, y = var("float64", None, name="x"), var("float64", None, name="y")
    out = E.abs(E.exp(E.complex(x, y)) ** 2)
    tangent = np.array([0.3, -0.2])
    got = value(Rop(out, x, tangent), {x: np.array([0.1, 0.2]), y: np.array([1.0, 2.0])})
    np.testing.assert_allclose(got, 2 * np.exp([0.2, 0.4]) * tangent)


def test_infinite_parts_stay_apart():
    z = value(E.complex(constant(np.inf), constant(1.0)))
    assert (z.real, z.imag) == (np.inf, 1)


# --- shapes and properties ------------------------------------------------------------------------


@st.composite
def broadcastable_pair(draw):
    shapes = draw(hnp.mutually_broadcastable_shapes(num_shapes=2, max_dims=3, max_side=3))
    dtypes = st.sampled_from(["bool", "int8", "uint8", "int64", "float32", "float64", "complex64"])
    numbers = st.integers(0, 3)
    return [
        np.asarray(draw(hnp.arrays("int8", s, elements=numbers))).astype(draw(dtypes))
        for s in shapes.input_shapes
    ]


@settings(max_examples=60, deadline=None)
@given(broadcastable_pair(), st.sampled_from(["add", "multiply", "maximum", "equal", "not_equal"]))
def test_binary_ops_agree_with_numpy_for_any_shapes_and_dtypes(pair, name):
    a, b = pair
    assume(name != "maximum" or "c" not in (a.dtype.kind, b.dtype.kind))
    x, y = (TensorType(v.dtype, tuple(1 if n == 1 else None for n in v.shape))() for v in pair)
    got, want = value(getattr(E, name)(x, y), {x: a, y: b}), getattr(np, name)(a, b)
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    np.testing.assert_array_equal(got, want)


@settings(max_examples=40, deadline=None)
@given(
    hnp.arrays(
        "float64", hnp.array_shapes(min_dims=1, max_dims=2, max_side=4), elements=st.floats(-20, 20)
    )
)
def test_identities_of_activations(a):
    x = constant(a)
    checks = [
        (E.sigmoid(x) + E.sigmoid(-x), 1.0),
        (E.softplus(x) - E.softplus(-x), a),
        (E.relu(x) - E.relu(-x), a),
        (E.elu(x, 0), np.maximum(a, 0)),
        (E.relu(x, 1), a),
        (E.gelu(x) - E.gelu(-x), a),
    ]  # fmt: skip
    for got, want in checks:
        np.testing.assert_allclose(value(got), np.broadcast_to(want, a.shape), atol=1e-12)


def test_every_name_of_the_face_exists_and_is_unique():
    assert len(set(E.__all__)) == len(E.__all__)
    assert all(callable(getattr(E, name)) for name in E.__all__)


@pytest.mark.parametrize("dtype", ["bool", "uint8", "uint16", "uint32", "uint64", "int8", "int64"])
def test_log_sigmoid_of_whole_numbers(dtype):
    """It negates its operand: of an unsigned one, and of the least int8, that would wrap around."""
    x = np.array([0, 1, 9] + ([-128] if dtype[0] == "i" else []), dtype)
    got = value(E.log_sigmoid(x))
    np.testing.assert_allclose(got, -np.logaddexp(0, -x.astype("f8")), rtol=1e-6)


@pytest.mark.parametrize(("dtype", "rtol"), [("float32", 1e-5), ("float64", 1e-12)])
def test_log_ndtr_is_exact_in_both_tails(dtype, rtol, rng):
    """Above 0 it is no difference of numbers near log 2."""
    x = np.concatenate([rng.uniform(-30, 9, 40), [0, 6, 9, -9, 1e-4]]).astype(dtype)
    got = value(E.log_ndtr(constant(x)))
    wide = x.astype("f8")
    want = np.where(wide > 0, np.log1p(-0.5 * special.erfc(wide / np.sqrt(2))),
                    special.log_ndtr(wide))  # fmt: skip
    np.testing.assert_allclose(got, want, rtol=rtol)


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_polygamma_far_below_0(n):
    """By reflection, at once, where steps of 1 up to 9 would never end."""
    x = np.array([-1000.25, -2500.3, -2e4 - 0.4, -3.7, 2.5, -12345.0, -1e18])
    wanted = [float(mpmath.psi(n, mpmath.mpf(v))) for v in x[:5]] + [np.inf, np.inf]
    np.testing.assert_allclose(value(E.polygamma(float(n), constant(x))), wanted, rtol=1e-9)


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_log1p_of_complex_numbers_near_0(rng, dtype):
    z = (rng.normal(size=300) + 1j * rng.normal(size=300)) * np.repeat([1e-6, 0.02, 3], 100)
    z = z.astype(dtype)
    wanted = np.array([complex(mpmath.log1p(mpmath.mpc(complex(v)))) for v in z])
    found = value(E.log1p(constant(z)))
    assert found.dtype == dtype
    assert (np.abs(found - wanted) <= 2 * np.finfo(dtype).eps * np.abs(wanted)).all()
