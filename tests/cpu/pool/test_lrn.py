"""Compiled local response normalisation: both orders of dimensions, any window, exponent, sizes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import symdnn
import symdnn.tensor as T
from symdnn.config import config
from symdnn.cpu.onednn import library
from symdnn.cpu.pool.lrn import LrnKernel
from symdnn.graph.kernel import Call
from symdnn.graph.origin import NO_HINTS
from symdnn.graph.type import TensorType
from symdnn.ops.nn.lrn import LRN, LRNGrad
from tests.cpu.harness import call_of, compiled, launched

pytestmark = compiled


def both(op, *arrays):
    """The kernel's result, and the op's on operands of float64."""
    (made,) = launched(LrnKernel(), call_of(op, arrays), arrays)
    return made, op.reference(*(a.astype("float64") for a in arrays))


def check(rng, shape, *words, axis=1):
    """Both directions; x of such a size that windows count."""
    x, dy, y = (rng.normal(size=shape).astype("f") for _ in range(3))
    made, wanted = both(LRN(*words, axis=axis), 3 * x)
    np.testing.assert_allclose(made, wanted, rtol=2e-6, atol=1e-7)
    made, wanted = both(LRNGrad(*words, axis=axis), 3 * x, y, dy)
    np.testing.assert_allclose(made, wanted, rtol=1e-5, atol=1e-5)


@settings(max_examples=12, deadline=None)
@given(st.data())
def test_all_sizes(data):
    number = lambda low, high: data.draw(st.integers(low, high))  # noqa: E731
    shape = tuple(number(1, 24) for _ in range(number(2, 5)))
    axis = data.draw(st.sampled_from([1, len(shape) - 1]))
    beta = data.draw(st.sampled_from([0.0, 0.5, 0.6, 0.75, 1.0]))
    words = number(1, 16), data.draw(st.sampled_from([1e-4, 0.3])), beta, 1.5
    check(np.random.default_rng(number(0, 99)), shape, *words, axis=axis)


@pytest.mark.parametrize("axis", [1, 3])
@pytest.mark.parametrize("count", [1, 2])
def test_sizes_of_networks(rng, axis, count):
    with config.change_flags(**{"openmp.threads": count}):
        for channels, side in ((96, 55), (256, 27), (3, 130), (1500, 3)):
            shape = (2, channels, side, side) if axis == 1 else (2, side, side, channels)
            check(rng, shape, 5, 1e-2, 0.75, 1.0, axis=axis)


def test_operands_that_do_not_lie_densely(rng):
    x, dy, y = (rng.normal(size=(5, 7, 12, 3)).astype("f").transpose(3, 0, 2, 1) for _ in range(3))
    made, wanted = both(LRNGrad(3, 0.1, 0.75, 1.0), x, y, dy[..., ::-1])
    np.testing.assert_allclose(made, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("axis", [1, 3])
@pytest.mark.parametrize(("value", "beside"), [(np.nan, np.nan), (np.inf, 0.0)])
def test_what_is_not_finite_meets_its_window_alone(axis, value, beside):
    x = np.ones((1, 9, 9, 9), "f")
    x[0, 4, 4, 4] = value
    op = LRN(3, 1.0, 0.75, 1.0, axis=axis)
    types = (TensorType("float32", x.shape),)
    made = np.empty_like(x)
    LrnKernel().bind(Call(op, types, types, NO_HINTS))([x], [made])
    window = np.moveaxis(made, axis, -1)[0, 4, 4] if axis == 1 else made[0, 4, 4]
    np.testing.assert_array_equal(window[3:6], [beside, np.nan, beside])
    made[~np.isfinite(made)] = 0
    assert np.count_nonzero(made) == x.size - 3


def refusal(op, shape, dtype="float32"):
    types = (TensorType(dtype, shape),) * (3 if isinstance(op, LRNGrad) else 1)
    return LrnKernel().refuses(Call(op, types, types[:1], NO_HINTS))


def test_what_is_refused():
    assert refusal(LRN(), (2, 3, 4, 5)) is None
    assert "float32" in refusal(LRN(), (2, 3), "float64")
    assert "16 channels" in refusal(LRNGrad(17), (2, 30))
    assert "no elements" in refusal(LRN(), (2, 0, 4, 5))
    assert "at most 4096" in refusal(LRN(), (1, 5000))
    with config.change_flags(**{"cpu.compile": "auto"}):
        assert "too little" in refusal(LRN(), (2, 3, 4, 5))
    with config.change_flags(**{"cpu.compile": "never"}):
        assert "never" in refusal(LRN(), (2, 3, 4, 5))


@pytest.mark.skipif(bool(library.problem()), reason="oneDNN is missing")
def test_between_convolutions_it_has_channels_last(rng):
    x = T.ftensor4("x")
    a, b = (
        symdnn.shared(0.2 * rng.normal(size=s).astype("f")) for s in ((24, 3, 3, 3), (8, 24, 3, 3))
    )
    h = T.nnet.relu(T.nnet.conv2d(x, a))
    y = T.nnet.conv2d(T.nnet.local_response_normalization(h, 5, 0.1, 0.75, 1.0), b)
    results = [y, *T.grad((y**2).mean(), [a, b])]
    cpu = symdnn.Mode(target="cpu")
    f = symdnn.function([x], results, mode=cpu)
    given = rng.normal(size=(2, 3, 20, 19)).astype("f")
    made = f(given)
    lines = [line for line in str(f.lowering_report()).splitlines() if " LRN" in line]
    assert len(lines) == 2
    assert all("llvm.lrn" in line and "axis=3" in line for line in lines)
    plain = symdnn.function([x], results, mode=cpu.excluding("onednn"))
    for one, other in zip(made, plain(given)):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5 * np.abs(other).max())
