"""Dropout: what is dropped, how it is scaled, and where the numbers come from."""

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn import nn
from symdnn.errors import InputError, TypeMismatch

ONES = np.ones((40, 50), "float32")


def drawn(layer, value=ONES, calls=1):
    x = T.TensorType("float32", (None,) * value.ndim)("x")
    f = symdnn.function([x], layer(x))
    return [f(value) for _ in range(calls)]


def test_what_stays_is_scaled_up():
    (y,) = drawn(nn.Dropout(0.25))
    assert set(np.unique(y).round(5)) == {0, np.float32(4 / 3).round(5)}
    assert 0.2 < (y == 0).mean() < 0.3
    (y,) = drawn(nn.Dropout(0.25, v1=True))
    assert set(np.unique(y)) == {0, 1}


def test_evaluation_drops_nothing():
    x = T.fmatrix("x")
    layer = nn.Dropout(0.25).evaluate()
    assert layer(x) is x
    np.testing.assert_allclose(drawn(nn.Dropout(0.25, v1=True).evaluate())[0], 0.75 * ONES)
    assert nn.Dropout(0)(x) is x


def test_each_call_of_a_function_draws_anew_and_a_seed_repeats_them():
    first, second = drawn(nn.Dropout(seed=5), calls=2)
    assert (first != second).any()
    again = drawn(nn.Dropout(seed=5), calls=2)
    np.testing.assert_array_equal(again, [first, second])
    assert (drawn(nn.Dropout(seed=6))[0] != first).any()
    outcomes = []
    for _ in range(2):
        nn.init.seed(3)
        outcomes.append(drawn(nn.Sequential(nn.Dropout(), nn.Dropout()))[0])
    np.testing.assert_array_equal(*outcomes)


def test_two_calls_of_a_module_have_streams_of_their_own():
    layer, x = nn.Dropout(0.5), T.fmatrix("x")
    a, b = symdnn.function([x], [layer(x), layer(x)])(ONES)
    assert (a != b).any()


def test_the_gradient_goes_through_what_stayed():
    layer, x = nn.Dropout(0.5), T.fmatrix("x")
    y = layer(x)
    value, slope = symdnn.function([x], [y, symdnn.grad(y.sum(), x)])(ONES)
    np.testing.assert_array_equal(value, slope)


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.SpatialDropout(0.5), (4, 20, 3, 5)),
        (nn.SpatialDropout(0.5), (60, 3, 5)),
        (nn.VolumetricDropout(0.5), (4, 20, 2, 3, 5)),
        (nn.VolumetricDropout(0.5), (60, 2, 3, 5)),
    ],
    ids=repr,
)
def test_whole_planes_are_dropped(layer, shape):
    (y,) = drawn(layer, np.ones(shape, "float32"))
    planes = shape[: len(shape) - layer.positions]
    flat = y.reshape(int(np.prod(planes)), -1)
    assert (flat == flat[:, :1]).all()
    assert set(flat[:, 0]) == {0, 2}


def test_states_of_random_numbers_are_found_and_repeat_the_numbers():
    net, x = nn.Sequential(nn.Dropout(), nn.ReLU(), nn.Dropout()), T.fmatrix("x")
    y = net(x)
    states = nn.random_states(y)
    assert len(states) == 2
    f = symdnn.function([x], y)
    f(ONES)
    kept = [s.get_value() for s in states]
    wanted = f(ONES)
    for s, value in zip(states, kept, strict=True):
        s.set_value(value)
    np.testing.assert_array_equal(f(ONES), wanted)
    assert nn.random_states(net.evaluate()(x)) == []


def test_what_does_not_fit():
    with pytest.raises(InputError, match=r"wanted a probability, 0 to 1, got 1\.5"):
        nn.Dropout(1.5)
    with pytest.raises(TypeMismatch, match="SpatialDropout: wanted a float tensor"):
        nn.SpatialDropout()(T.matrix())
    with pytest.raises(TypeMismatch, match="Dropout: wanted a float tensor"):
        nn.Dropout()(T.imatrix())
    assert repr(nn.Dropout()) == "nn.Dropout(0.500000)"
    assert nn.Sequential(nn.Dropout()).state_dict() == {}
