"""Theano's streams of random numbers: test values, and states that programs copy."""

from __future__ import annotations

import numpy as np
import pytest

STREAMS = ("tensor.shared_randomstreams.RandomStreams", "sandbox.rng_mrg.MRG_RandomStreams")


@pytest.fixture(params=STREAMS)
def Streams(theano, request):
    import importlib

    module, _, name = request.param.rpartition(".")
    return getattr(importlib.import_module(f"theano.{module}"), name)


def test_random_variables_have_test_values(theano, T, Streams):
    with theano.change_flags(compute_test_value="raise"):
        stream, x = Streams(3), T.dmatrix()
        x.tag.test_value = np.ones((2, 3))
        noisy = x * stream.binomial(x.shape, p=0.5, dtype="float64") + stream.normal((2, 3))
        assert noisy.tag.test_value.shape == (2, 3)
        assert (stream.uniform((4,), low=1, high=2).tag.test_value >= 1).all()


def test_the_state_of_one_stream_given_to_another(theano, Streams):
    """Theano's tutorial copies the state of random variables between graphs so."""

    def graph(seed):
        stream = Streams(seed)
        return stream, theano.function([], stream.uniform((3,)))

    (one, f), (two, g) = graph(123), graph(987)
    f()
    if hasattr(one, "rstate"):
        two.rstate = one.rstate
    for (mine, _), (theirs, _) in zip(two.state_updates, one.state_updates, strict=True):
        mine.set_value(theirs.get_value())
    np.testing.assert_array_equal(f(), g())
    if hasattr(one, "rstate"):  # variables that are made from now on are equal, too
        new = [theano.function([], stream.normal((3,))) for stream in (one, two)]
        np.testing.assert_array_equal(new[0](), new[1]())


def test_draws_from_a_state_that_is_an_input(theano, T):
    """What Theano's tutorial calls raw_random: the function keeps the state."""
    from theano.tensor import raw_random

    state, n = raw_random.random_state_type("state"), T.lscalar("n")
    after, u = raw_random.uniform(state, (n, 3), 1.0, 2.0)
    last, g = raw_random.normal(after, (2,), 5.0, 0.1)

    def function(seed):
        start = np.random.RandomState(seed)
        kept = theano.In(state, value=start, update=last, mutable=True)
        return theano.function([kept, n], [u, g])

    f, again, other = function(1), function(1), function(2)
    first, second = f(n=4), f(n=4)
    assert first[0].shape == (4, 3)
    assert ((first[0] >= 1) & (first[0] < 2)).all()
    assert abs(first[1] - 5).max() < 1
    assert not np.allclose(first[0], second[0])
    for found, wanted in ((again(n=4), first), (again(n=4), second)):
        for a, b in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(a, b)
    assert not np.allclose(other(n=4)[0], first[0])
    with pytest.raises(TypeError, match="wanted a state"):
        raw_random.uniform(np.random.RandomState(1), (2,))
