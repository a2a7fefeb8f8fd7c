"""Compiled pooling against the reference: windows, borders, ties, NaN, layouts, threads."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import symdnn
import symdnn.tensor as T
from symdnn.config import config
from symdnn.cpu.pool.pool import PoolKernel
from symdnn.graph.kernel import Call
from symdnn.graph.origin import NO_HINTS
from symdnn.graph.type import TensorType
from symdnn.ops.nn.pool import MODES, AveragePoolGrad, MaxPoolGrad, MaxPoolGradGrad, Pool
from tests.cpu.harness import call_of, compiled, launched
from tests.seeded import new_rng, sampled

pytestmark = compiled


def apply(op, *arrays, sizes=()):
    """The kernel's result and the reference's."""
    host = tuple(np.int64(n) for n in sizes)
    wanted = op.reference(*[a.astype("float64") for a in arrays], *host)
    given = (*arrays, *host)
    call = call_of(op, given, TensorType(arrays[0].dtype.name, wanted.shape))
    return *launched(PoolKernel(), call, given), wanted


def check(shape, settings_, rng, dtype="float32", lay=lambda a: a):
    """All kernels of one geometry. Few different values, so that there are ties."""
    x = lay(rng.integers(-4, 5, shape).astype(dtype))
    close = {"rtol": 2e-6, "atol": 2e-6}
    y, wanted = apply(Pool(*settings_), x)
    np.testing.assert_allclose(y, wanted, **close)
    dy, v = (lay(rng.normal(size=s).astype(dtype)) for s in (y.shape, x.shape))
    if settings_[3] == "max":
        np.testing.assert_allclose(*apply(MaxPoolGrad(*settings_), x, lay(y), dy), **close)
        np.testing.assert_allclose(*apply(MaxPoolGradGrad(*settings_), x, lay(y), v), **close)
    else:
        sizes = shape[-len(settings_[0]) :]
        op = AveragePoolGrad(*settings_, sizes)
        np.testing.assert_allclose(*apply(op, dy, sizes=sizes), **close)


@settings(max_examples=15, deadline=None)
@given(st.data())
def test_windows_of_all_kinds(data):
    ndim = data.draw(st.integers(1, 2))
    whole = data.draw(st.booleans())
    draw = lambda low, high: tuple(data.draw(st.integers(low, high)) for _ in range(ndim))  # noqa: E731
    ws, stride, size = draw(1, 4), draw(1, 4), draw(1, 19)
    pad = tuple(data.draw(st.integers(0, w - 1)) for w in ws) if whole else (0,) * ndim
    op = (ws, stride, pad, data.draw(st.sampled_from(MODES)), whole)
    shape = (2, 3, *size)[data.draw(st.integers(0, 2)) :]
    assume(0 not in Pool(*op).out_shape(shape))
    check(shape, op, np.random.default_rng(data.draw(st.integers(0, 99))))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("ws", "stride", "pad"),
    [((2, 2), (2, 2), (0, 0)), ((3, 3), (2, 2), (1, 1)), ((3, 2), (1, 3), (2, 0))],
)
def test_images(rng, ws, stride, pad, dtype, mode):
    for shape in ((5, 3, 24, 24), (2, 3, 57, 33), (3, 8, 8)):
        check(shape, (ws, stride, pad, mode, True), rng, dtype)


#: Shape, windows, stride, pad, whether borders are left out.
LARGE = [
    ((2, 24, 25), (7, 7), (7, 7), (0, 0), True), ((2, 24, 27), (7, 6), (2, 3), (3, 2), True),
    ((2, 20, 21), (9, 7), (4, 1), (0, 0), False), ((2, 5, 9, 10, 11), (3, 3, 3), (2, 2, 2),
    (0, 0, 0), True), ((8, 9, 20), (3, 4, 3), (1, 1, 1), (1, 2, 1), True),
    ((3, 7, 8, 9), (2, 3, 2), (2, 2, 3), (0, 0, 0), False),
]  # fmt: skip


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32", "int64", "uint64"])
@pytest.mark.parametrize(
    ("shape", "ws"), [((2, 5, 9, 11), (2, 2)), ((2, 17), (3,)), ((1, 40, 40), (9, 9))]
)
def test_maxima_of_integers_are_exact(rng, dtype, shape, ws):
    """With all bits of a number, and of the least ones."""
    settings_ = (ws, ws, (0,) * len(ws), "max", True)
    facts = np.iinfo(dtype)
    x = rng.integers(facts.min, facts.max, shape, dtype, True)
    x[..., :4] = facts.min
    v = rng.integers(0, 5, shape).astype(dtype)
    y = Pool(*settings_).reference(x)
    dy = rng.integers(0, 5, y.shape).astype(dtype)
    for op, given_ in ((Pool, (x,)), (MaxPoolGrad, (x, y, dy)), (MaxPoolGradGrad, (x, y, v))):
        wanted = op(*settings_).reference(*given_)
        call = call_of(op(*settings_), given_, TensorType(dtype, wanted.shape))
        np.testing.assert_array_equal(*launched(PoolKernel(), call, given_), wanted)


@pytest.mark.parametrize("mode", MODES)
def test_large_windows_and_volumes(rng, mode):
    for shape, ws, stride, pad, whole in LARGE:
        check(shape, (ws, stride, pad, mode, whole), rng)


def test_operands_may_lie_in_any_way(rng):

    def turned(a):
        return np.ascontiguousarray(a.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)

    for mode in MODES:
        check((4, 5, 12, 13), ((2, 2), (2, 2), (0, 0), mode, True), rng, lay=turned)


def test_a_nan_in_a_window_gives_nan_and_gets_no_gradient():
    x = new_rng().normal(size=(2, 3, 16, 40)).astype("float32")
    x[0, 1, 5, 7] = x[1, 2, 15, 39] = x[0, 0, 0, 0] = np.nan
    for windows in (3, 8):
        op = ((windows, windows), (2, 2), (1, 1), "max", True)
        y, wanted = apply(Pool(*op), x)
        np.testing.assert_array_equal(y, wanted)
        assert np.isnan(y).any()
        np.testing.assert_array_equal(*apply(MaxPoolGrad(*op), x, y, np.ones_like(y)))


ALL_BELOW = [(dtype, shape, *windows) for dtype in ("float32", "float64", "bfloat16")
             for shape in ((1, 1, 4, 4), (2, 16, 8, 8), (1, 3, 4, 4, 4))
             for windows in ((2, 0, True), (3, 1, True), (3, 0, False))]  # fmt: skip


@pytest.mark.parametrize(("dtype", "shape", "ws", "pad", "ends"), sampled(ALL_BELOW, every=3))
def test_a_window_of_minus_infinity_has_this_maximum(dtype, shape, ws, pad, ends):
    """By whatever kernel a program takes, in a call with and without such windows."""
    n = len(shape) - 2
    op = ((ws,) * n, (2,) * n, (pad,) * n, "max", ends)
    x = T.TensorType(dtype, (None,) * len(shape))()
    y = Pool(*op)(x)
    f = symdnn.function([x], [y, T.grad(y.sum(), x)])
    numbers = new_rng().normal(size=shape)
    lowest = np.where(numbers > -1, numbers, -3e38)
    masked = np.where(numbers > 1.5, numbers, -np.inf)
    for value in (numbers, lowest, masked, np.full(shape, -np.inf), numbers):
        given = T.constant(value).astype(dtype).eval()
        found, dx = f(given)
        rows = Pool(*op).compute(given)[0]
        np.testing.assert_array_equal(found, rows)
        slopes = MaxPoolGrad(*op).compute(given, rows, np.ones_like(rows))[0]
        np.testing.assert_array_equal(dx, slopes)


def test_bits_do_not_depend_on_threads(rng):
    x = rng.normal(size=(3, 5, 31, 29)).astype("float32")
    op = ((3, 3), (2, 2), (0, 0), "max", False)
    found = []
    for count in (1, 2, 5):
        with config.change_flags(**{"openmp.threads": count}):
            y = apply(Pool(*op), x)[0]
            found.append((y, apply(MaxPoolGrad(*op), x, y, np.cos(y))[0]))
    for y, dx in found[1:]:
        np.testing.assert_array_equal(y, found[0][0])
        np.testing.assert_array_equal(dx, found[0][1])


def test_what_it_does_not_compute_is_refused_with_the_reason():
    def refusal(dtype, shape, ws):
        op = Pool(ws, ws, (0,) * len(ws), "max", True)
        given = TensorType(dtype, shape)
        return PoolKernel().refuses(Call(op, (given,), (op.infer(given),), NO_HINTS))

    assert "float32 and float64" in refusal("float16", (2, 8, 8), (2, 2))
    assert "1 to 3 dimensions" in refusal("float32", (2, 8, 8, 8, 8), (2, 2, 2, 2))
    assert "36 columns" in refusal("float32", (2, 8, 80), (2, 40))
    assert "no elements" in refusal("float32", (0, 8, 8), (2, 2))


def test_a_gradient_of_a_net_runs_here():
    x = T.ftensor4("x")
    y = T.signal.pool.pool_2d(x, (2, 2), ignore_border=True)
    f = symdnn.function([x], symdnn.grad((y**3).sum(), x), mode=symdnn.Mode(target="cpu"))
    given = new_rng().normal(size=(2, 3, 8, 6)).astype("float32")
    blocks = given.reshape(2, 3, 4, 2, 3, 2)
    top = blocks.max((3, 5), keepdims=True)
    wanted = np.where(blocks == top, 3 * top**2, 0).reshape(given.shape)
    np.testing.assert_allclose(f(given), wanted, rtol=1e-5)
    assert "llvm.pool" in f.lowering_report().kernels()
