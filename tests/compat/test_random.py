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
