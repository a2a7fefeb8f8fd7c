"""Compiled pooling of images with channels last: any window, any number of channels, ties, NaN."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from symdnn.config import config
from symdnn.cpu.pool.pool_nhwc import PoolNhwcKernel
from symdnn.graph.kernel import Call
from symdnn.graph.origin import NO_HINTS
from symdnn.graph.type import TensorType
from symdnn.ops.nn.pool import MODES, AveragePoolGrad, MaxPoolGrad, Pool
from symdnn.ops.vendor.onednn import OneDnnPool, OneDnnPoolGrad
from tests.cpu.harness import call_of, compiled, launched
from tests.seeded import new_rng

pytestmark = compiled


def last(a):
    """(N, C, rows, columns) with channels last."""
    return np.ascontiguousarray(a.transpose(0, 2, 3, 1))


def apply(op, *arrays, sizes=(), lay=last):
    """The kernel's result and the reference's, both with channels last."""
    wanted = last(op.reference(*[a.astype("float64") for a in arrays], *sizes))
    given = [*map(lay, arrays), *map(np.int64, sizes)]
    low = (OneDnnPool if isinstance(op, Pool) else OneDnnPoolGrad)(op, layout="NHWC")
    call = call_of(low, given, TensorType(arrays[0].dtype.name, wanted.shape))
    return *launched(PoolNhwcKernel(), call, given), wanted


def check(shape, op, rng, dtype="float32", lay=last):
    """Both directions of one geometry. Few different values, so that there are ties."""
    close = {"rtol": 3e-6, "atol": 3e-6}
    x = rng.integers(-4, 5, shape).astype(dtype)
    y, wanted = apply(Pool(*op), x, lay=lay)
    np.testing.assert_allclose(y, wanted, **close)
    first = np.ascontiguousarray(y.transpose(0, 3, 1, 2))
    dy = rng.normal(size=first.shape).astype(dtype)
    if op[3] == "max":
        np.testing.assert_allclose(*apply(MaxPoolGrad(*op), x, first, dy, lay=lay), **close)
    else:
        back = AveragePoolGrad(*op, shape[-2:])
        np.testing.assert_allclose(*apply(back, dy, sizes=shape[-2:], lay=lay), **close)


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_windows_of_all_kinds(data):
    whole = data.draw(st.booleans())
    draw = lambda low, high: tuple(data.draw(st.integers(low, high)) for _ in range(2))  # noqa: E731
    ws, stride, size = draw(1, 4), draw(1, 5), draw(1, 13)
    pad = tuple(data.draw(st.integers(0, w - 1)) for w in ws) if whole else (0, 0)
    op = (ws, stride, pad, data.draw(st.sampled_from(MODES)), whole)
    channels = data.draw(st.sampled_from([1, 2, 3, 7, 16, 20, 33, 50]))
    shape = (data.draw(st.integers(1, 3)), channels, *size)
    assume(0 not in Pool(*op).out_shape(shape))
    check(shape, op, np.random.default_rng(data.draw(st.integers(0, 99))))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("ws", "stride", "pad"),
    [((2, 2), (2, 2), (0, 0)), ((3, 3), (2, 2), (1, 1)), ((5, 3), (1, 3), (4, 0))],
)
def test_images(rng, ws, stride, pad, dtype, mode):
    for shape in ((5, 20, 24, 24), (2, 64, 17, 15), (3, 23, 8, 8)):
        check(shape, (ws, stride, pad, mode, True), rng, dtype)


def test_operands_may_lie_in_any_way():
    for mode in MODES:
        op = ((2, 2), (2, 2), (0, 0), mode, True)
        check((4, 5, 12, 13), op, new_rng(), lay=lambda a: a.transpose(0, 2, 3, 1))


def test_a_nan_in_a_window_gives_nan_and_gets_no_gradient():
    x = new_rng().normal(size=(2, 18, 16, 40)).astype("float32")
    x[0, 1, 5, 7] = x[1, 17, 15, 39] = x[0, 0, 0, 0] = np.nan
    x[1, 3] = -np.inf
    op = ((3, 3), (2, 2), (1, 1), "max", True)
    y, wanted = apply(Pool(*op), x)
    np.testing.assert_array_equal(y, wanted)
    assert np.isnan(y).sum() >= 3
    first = np.ascontiguousarray(y.transpose(0, 3, 1, 2))
    np.testing.assert_array_equal(*apply(MaxPoolGrad(*op), x, first, np.ones_like(first)))


def test_bits_do_not_depend_on_threads():
    x = new_rng().normal(size=(3, 21, 31, 29)).astype("float32")
    op = ((3, 3), (2, 2), (0, 0), "max", False)
    found = []
    for count in (1, 2, 5):
        with config.change_flags(**{"openmp.threads": count}):
            y = apply(Pool(*op), x)[0]
            first = np.ascontiguousarray(y.transpose(0, 3, 1, 2))
            found.append((y, apply(MaxPoolGrad(*op), x, first, np.cos(first))[0]))
    for y, dx in found[1:]:
        np.testing.assert_array_equal(y, found[0][0])
        np.testing.assert_array_equal(dx, found[0][1])


def test_what_it_does_not_compute_is_refused_with_the_reason():
    def refusal(layout, shape, ws, dtype="float32"):
        op = Pool(ws, ws, (0,) * len(ws), "max", True)
        given = TensorType(dtype, shape)
        low = OneDnnPool(op, layout=layout)
        return PoolNhwcKernel().refuses(Call(low, (given,), (given,), NO_HINTS))

    assert "channels last" in refusal("NCHW", (2, 8, 8, 3), (2, 2))
    assert "two sizes" in refusal("NHWC", (2, 8, 8, 8, 3), (2, 2, 2))
    assert "float32 and float64" in refusal("NHWC", (2, 8, 8, 3), (2, 2), "float16")
    assert "at most 36" in refusal("NHWC", (2, 8, 8, 3), (7, 7))
