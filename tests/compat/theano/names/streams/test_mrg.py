"""``MRG_RandomStreams`` has the numbers that Theano 1.0.5 draws from the same seeds."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from symdnn.ops.random.mrg import M1, M2, jumped, spaced, step

#: What Theano 1.0.5 gives for ``MRG_RandomStreams(42)``, made in the order of ``graph``: the first
#: numbers of each variable, in the first call and in the first after ``seed(7)``.
FIRST = {
    "normal": [-0.010494115130743852, 0.22253617937825163, -0.5451052322481638],
    "uniform": [0.588107808958739, 0.9696830566972494, 0.24092124961316586],
    "binomial": [0, 0, 1, 0, 0, 0],
    "multinomial": [1, 2, 1, 0, 1, 1],
    "truncated": [-0.6347330992955131, -0.8312738567248017, 0.9930627423181643],
    "half": [0.84521484375, 0.34716796875, 0.94873046875, 0.3544921875],
}
AFTER_SEVEN = [0.7574838831903759, 1.9078833382758538, 0.026576762807749694]


@pytest.fixture
def Streams(theano):
    from theano.sandbox.rng_mrg import MRG_RandomStreams

    return MRG_RandomStreams


@pytest.fixture
def graph(theano, T, Streams):
    """The stream of seed 42, and a function of its variables by the names of ``FIRST``."""
    s = Streams(42)
    n, x, p = T.lscalar(), T.dmatrix(), T.dmatrix()
    made = {
        "normal": s.normal((5,)),
        "moved": s.normal((2, 4), avg=1.0, std=3.0),
        "many": s.normal((n, 3)),
        "uniform": s.uniform(x.shape),
        "binomial": s.binomial((11,), p=0.3),
        "each": s.binomial(x.shape, p=x),
        "once": s.multinomial(pvals=p),
        "multinomial": s.multinomial(pvals=p, n=5),
        "float32": s.normal((n,), dtype="float32"),
        "truncated": s.normal((31,), truncate=True),
        "within": s.truncated_normal((n, n)),
        "half": s.uniform((10,), dtype="float16"),
    }
    f = theano.function([n, x, p], list(made.values()))
    image = np.linspace(0.05, 0.9, 12).reshape(3, 4)
    rows = np.random.RandomState(0).dirichlet(np.ones(5), size=6)
    return s, lambda n: dict(zip(made, f(n, image, rows), strict=True))


def test_numbers_of_theano(graph):
    stream, draw = graph
    first = draw(7)
    for name, wanted in FIRST.items():
        np.testing.assert_allclose(first[name].ravel()[: len(wanted)], wanted, rtol=1e-13)
    assert first["float32"].dtype == np.float32
    assert abs(first["within"]).max() < 2 / 0.879
    assert not np.allclose(draw(7)["normal"], first["normal"])
    stream.seed(7)
    np.testing.assert_allclose(draw(7)["normal"][:3], AFTER_SEVEN, rtol=1e-13)
    stream.seed()
    again = draw(7)
    for name, value in first.items():
        np.testing.assert_array_equal(again[name], value)


def test_numbers_of_theano_with_few_streams(theano, Streams):
    s = Streams(1)
    u = s.uniform((3,))
    f = theano.function([], u)
    np.testing.assert_allclose(f(), [0.0019226670265197754, 0.7363596991635859, 0.3538084593601525])
    f()
    np.testing.assert_allclose(f(), [0.9304292434826493, 0.1843209508806467, 0.635562963783741])
    assert u.rstate.get_value().shape == (3, 6)
    single = theano.function([], Streams(1).uniform((3,), low=-1, high=3, nstreams=1))()
    assert single[0] == 4 * 0.0019226670265197754 - 1
    six = Streams([1, 2, 3, 4, 5, 6])
    six.uniform((3,))
    np.testing.assert_allclose(
        theano.function([], six.uniform((7, 5), dtype="float32"))().ravel()[:3],
        np.float32([0.5190132260322571, 0.5583741068840027, 0.7747723460197449]),
    )


def test_numbers_of_theano_within_a_loop(theano, T, Streams):
    s = Streams(3)
    values, updates = theano.scan(
        lambda h: h + s.normal((2,)), outputs_info=T.zeros((2,)), n_steps=4
    )
    found = theano.function([], values, updates=updates)()
    wanted = [0.816921772244249, 3.1053982356060614, 2.4057081123407427, 5.89768208767344]
    np.testing.assert_allclose(found.ravel()[:4], wanted, rtol=1e-13)


def test_seeds_that_theano_refuses(Streams):
    for seed in (0, -3, M2, [0, 0, 0, 1, 1, 1], [1, 1, 1, 0, 0, 0], [1, 1, M1, 1, 1, 1]):
        with pytest.raises(ValueError, match="seed"):
            Streams(seed)
    with pytest.raises(TypeError, match="six"):
        Streams([1, 2])
    assert Streams(np.int64(9)).rstate.tolist() == [9] * 6


def test_how_many_streams(theano):
    from theano.sandbox.rng_mrg import guess_n_streams

    sizes = (3,), (7,), [4, 5], (100, 100), (1000, 1000), (theano.tensor.lscalar(),), None
    assert [guess_n_streams(s) for s in sizes] == [3, 1, 3, 1666, 15360, 15360, 15360]


def test_other_distributions_draw_beside_them(theano, Streams):
    s = Streams(5)
    f = theano.function([], [s.uniform((4,)), s.poisson((4,), lam=3.0), s.choice(3, 10, p=None)])
    first = f()
    assert any((a != b).any() for a, b in zip(first, f(), strict=True))
    s.seed()
    for a, b in zip(first, f(), strict=True):
        np.testing.assert_array_equal(a, b)


def test_jumps_are_steps():
    state = np.array([[1, 2, 3, 4, 5, 6], [M1 - 1, 0, 7, M2 - 1, 9, 0]], np.int32)
    rows = list(state.astype(np.int64).T)
    for _ in range(8):
        rows = step(rows)
    np.testing.assert_array_equal(jumped(state, 3), np.stack(rows, 1))
    found = spaced(state[0], 5, 3)
    for before, after in itertools.pairwise(found):
        np.testing.assert_array_equal(jumped(before, 3), after)
    # The state after the numbers of one random variable, by Theano 1.0.5.
    wanted = [794368692, 752090334, 1365694155, 737191843, 1972381019, 1591306175]
    state = np.ones(6, np.int32)
    for _ in range(5):
        state = jumped(state, 134)
    np.testing.assert_array_equal(state, wanted)
