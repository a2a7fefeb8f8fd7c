from __future__ import annotations

import numpy as np
import pytest

from symdnn.autodiff import grad
from symdnn.config import config
from symdnn.errors import OptionError, ShapeMismatch, TypeMismatch
from symdnn.graph.evaluate import evaluate
from symdnn.graph.type import TensorType
from symdnn.graph.variable import as_variable
from symdnn.ops.nn import dropout as D
from symdnn.ops.random import random as R
from symdnn.ops.random import rng_philox as P
from symdnn.ops.random.random_stream import MRG_RandomStreams, RandomStream, RandomStreams

F = 0xFFFFFFFF


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((F, F, F, F), (F, F), (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_known_answers_of_philox4x32_10(counter, key, words):
    got = P.philox4x32(counter, key[0] | key[1] << 32)
    assert tuple(int(w) for w in got) == words


@pytest.mark.parametrize("width", [1, 2, 4])
def test_a_draw_is_a_window_of_the_stream(width):
    whole = P.words(np.array([99, 0], np.uint64), 40, width)
    for start in (1, 2, 3, 5, 17):
        part = P.words(np.array([99, start], np.uint64), 11, width)
        np.testing.assert_array_equal(part, whole[start : start + 11])


def test_widths_do_not_share_words():
    state = np.array([99, 0], np.uint64)
    assert not set(P.words(state, 64, 1).ravel()) & set(P.words(state, 64, 2).ravel())


def test_high_word_of_a_product():
    rng = np.random.default_rng(0)
    a, b = rng.integers(0, 1 << 64, (2, 100), dtype=np.uint64, endpoint=False)
    want = [int(x) * int(y) >> 64 for x, y in zip(a, b, strict=True)]
    assert [int(v) for v in P.mulhi64(a, b)] == want


def draw(v, step=0):
    """The value of a random variable after ``step`` calls, as a function would give it."""
    for _ in range(step):
        advance(v)
    return evaluate([v], {})[0]


def advance(v):
    states = {s for s, _ in v.tag.stream.state_updates} if hasattr(v.tag, "stream") else set()
    states.add(v.tag.rng)
    for s in states:
        s.set_value(evaluate([s.default_update], {})[0])


def test_uniform_is_uniform():
    x = draw(RandomStream(1).uniform((100_000,), dtype="float32"))
    assert x.dtype == np.float32
    assert 0 < x.min() < 1e-4
    assert 1 - 1e-4 < x.max() < 1
    assert abs(x.mean() - 0.5) < 5 / np.sqrt(12 * x.size)
    counts = np.histogram(x, 50, (0, 1))[0]
    assert ((counts - 2000) ** 2 / 2000).sum() < 100  # chi-square, 49 degrees of freedom


def test_normal_is_normal():
    from scipy import stats

    for dtype in ("float32", "float64"):
        x = draw(RandomStream(2).normal((50_000,), dtype=dtype))
        assert stats.kstest(x, "norm").pvalue > 1e-3
        assert abs(np.corrcoef(x[:-1], x[1:])[0, 1]) < 0.02
    t = draw(RandomStream(2).normal((20_000,), avg=1.0, std=2.0, truncate=True))
    assert t.min() > -3
    assert t.max() < 5
    assert abs(t.mean() - 1) < 0.05


def test_each_call_advances_and_one_variable_is_one_draw():
    stream = RandomStream(3)
    u, v = stream.uniform((4,)), stream.uniform((4,))
    a, b = evaluate([u, u + 0.0], {})
    np.testing.assert_array_equal(a, b)
    assert (draw(u) != draw(v)).all()
    assert (draw(u, 1) != a).all()
    assert u.tag.rng.default_update is u.tag.update[1]
    assert stream.updates()[0] == u.tag.update


def test_two_calls_are_one_long_draw():
    u = RandomStream(3).uniform((6,))
    both = np.concatenate([draw(u), draw(u, 1)])
    long = draw(RandomStream(3).uniform((12,)))
    np.testing.assert_array_equal(both, long)


def test_seeds_repeat_and_differ():
    first = draw(RandomStream(5).normal((3,)))
    np.testing.assert_array_equal(first, draw(RandomStream(5).normal((3,))))
    assert (draw(RandomStream(6).normal((3,))) != first).all()
    assert (draw(RandomStream([5, 6]).normal((3,))) != first).all()
    assert (draw(RandomStream(5 + (1 << 64)).normal((3,))) != first).all()
    assert (draw(RandomStream().normal((3,))) != draw(RandomStream().normal((3,)))).any()


def test_reseeding_starts_over():
    stream = RandomStream(5)
    u = stream.uniform((3,))
    first = draw(u)
    advance(u)
    stream.seed(5)
    np.testing.assert_array_equal(draw(u), first)
    stream.seed(6)
    np.testing.assert_array_equal(draw(u), draw(RandomStream(6).uniform((3,))))


@pytest.mark.parametrize("seed", [0, [0] * 6])
def test_mrg_takes_no_seed_of_zero(seed):
    with pytest.raises(ValueError, match="seed"):
        MRG_RandomStreams(seed)
    RandomStreams(0)


@pytest.mark.parametrize("seed", [-1, 1.5, []])
def test_bad_seeds(seed):
    with pytest.raises(ValueError, match="seed="):
        RandomStream(seed)


def test_sizes():
    stream = RandomStream(1)
    n = TensorType("int64", ())("n")
    vector = TensorType("int32", (2,))("v")
    x = TensorType("float32", (None, 3))("x")
    assert draw(stream.uniform(3)).shape == (3,)
    assert draw(stream.uniform(())).shape == ()
    assert draw(stream.uniform()).shape == ()
    assert evaluate([stream.uniform((n, 2))], {n: 4})[0].shape == (4, 2)
    assert evaluate([stream.uniform(n)], {n: 4})[0].shape == (4,)
    assert evaluate([stream.normal(vector)], {vector: np.array([2, 3], "int32")})[0].shape == (2, 3)
    u = stream.binomial(x.shape, p=0.5, dtype="float32")
    assert u.type.ndim == 2
    assert evaluate([u], {x: np.zeros((2, 3), "float32")})[0].shape == (2, 3)
    assert stream.uniform((2, 3)).type.shape == (2, 3)
    with pytest.raises(ValueError, match="negative"):
        stream.uniform((2, -1))
    with pytest.raises(ValueError, match="ndim=3"):
        stream.uniform((2, 1), ndim=3)
    with pytest.raises(TypeMismatch, match="ndim="):
        stream.uniform(TensorType("int64", (None,))())


def test_parameters_give_the_shape_and_take_gradients():
    stream = RandomStream(1)
    mean = TensorType("float64", (None, 3))("mean")
    std = TensorType("float64", (1, 3))("std")
    z = stream.normal(None, mean, std, dtype="float64")
    assert z.type.shape == (None, 3)
    values = {mean: np.zeros((2, 3)), std: np.ones((1, 3))}
    dmean, dstd, sample = evaluate([*grad(z.sum(), [mean, std]), z], values)
    np.testing.assert_array_equal(dmean, np.ones((2, 3)))
    np.testing.assert_allclose(dstd, sample.sum(0, keepdims=True))


def test_default_dtypes():
    stream = RandomStream(1)
    assert stream.uniform((2,)).type.dtype == config.floatX
    assert stream.normal((2,)).type.dtype == config.floatX
    assert stream.binomial((2,)).type.dtype == "int64"
    assert stream.binomial((2,), dtype="floatX").type.dtype == config.floatX
    assert stream.uniform((2,), low=np.float64(-1)).type.dtype == "float64"
    with pytest.raises(TypeMismatch, match="float dtype"):
        stream.uniform((2,), dtype="int64")


def test_uniform_range_and_binomial():
    stream = RandomStream(1)
    x = draw(stream.uniform((10_000,), -3.0, 5.0))
    assert -3 < x.min() < -2.9
    assert 4.9 < x.max() < 5
    b = draw(stream.binomial((20_000,), p=0.3))
    assert set(b) == {0, 1}
    assert abs(b.mean() - 0.3) < 0.02
    many = draw(stream.binomial((20_000,), n=7, p=0.3))
    assert abs(many.mean() - 2.1) < 0.05
    assert abs(many.var() - 7 * 0.21) < 0.1
    assert draw(stream.binomial((50,), p=0.0)).sum() == 0
    assert draw(stream.binomial((50,), p=1.0)).sum() == 50
    with pytest.raises(TypeMismatch, match="ints as n"):
        stream.binomial((2,), n=TensorType("float32", ())())


def test_integers_and_choices():
    stream = RandomStream(1)
    v = draw(stream.random_integers((10_000,), 2, 5))
    assert set(v) == {2, 3, 4, 5}
    assert np.ptp(np.bincount(v)[2:]) < 400
    with pytest.raises(ValueError, match=r"no integer in \[5, 3\)"):
        draw(stream.random_integers((3,), 5, 2))
    c = draw(stream.choice((10_000,), 3, p=[0.5, 0.2, 0.3]))
    np.testing.assert_allclose(np.bincount(c) / 10_000, [0.5, 0.2, 0.3], atol=0.02)
    assert sorted(draw(stream.choice((6,), 6, replace=False))) == list(range(6))
    assert draw(stream.choice((2, 3), 6, replace=False, p=np.full(6, 1 / 6))).shape == (2, 3)
    with pytest.raises(OptionError, match="7 elements of 6 without replace"):
        stream.choice((7,), 6, replace=False)
    with pytest.raises(ValueError, match="distinct"):
        draw(stream.choice((3,), 4, replace=False, p=[0.5, 0.5, 0, 0]))


def test_choice_of_a_vector_and_shuffled_rows():
    stream = RandomStream(1)
    assert set(evaluate([stream.choice((20,), as_variable(np.array([3.5, 4.5])))], {})[0]) <= {
        3.5,
        4.5,
    }
    x = np.arange(12.0).reshape(3, 4)
    y = evaluate([stream.shuffle_row_elements(x)], {})[0]
    np.testing.assert_array_equal(np.sort(y, 1), x)
    assert (y != x).any()


def test_permutation_is_fair():
    p = draw(RandomStream(4).permutation((6_000,), n=3))
    np.testing.assert_array_equal(np.sort(p, 1), np.tile(np.arange(3), (6_000, 1)))
    counts = np.bincount(p @ [9, 3, 1])
    assert np.ptp(counts[counts > 0]) < 200
    assert (counts > 0).sum() == 6


def test_multinomial():
    stream = MRG_RandomStreams(1)
    p = np.array([[0.2, 0.8], [0.5, 0.5], [1.0, 0.0]], "float32")
    one = draw(stream.multinomial(pvals=p))
    np.testing.assert_array_equal(one.sum(1), 1)
    assert one[2].tolist() == [1, 0]
    assert one.dtype == np.int64
    many = draw(stream.multinomial(n=10_000, pvals=p, dtype="float32"))
    np.testing.assert_allclose(many / 10_000, p, atol=0.02)
    sized = draw(RandomStreams(1).multinomial((5,), 3, [0.5, 0.5]))
    assert sized.shape == (5, 2)
    rows = draw(stream.choice(2, p=p[:2], replace=False))
    np.testing.assert_array_equal(np.sort(rows, 1), [[0, 1], [0, 1]])
    assert draw(stream.choice(4, p=p)).shape == (3, 4)
    with pytest.raises(ValueError, match="probabilities must be"):
        draw(stream.multinomial(pvals=-p))


def test_a_state_of_another_type_is_refused():
    with pytest.raises(TypeMismatch, match="random state"):
        R.random_uniform(as_variable(np.zeros(2)), (3,), "float32")


def test_dropout_scales_repeats_and_stops():
    x = TensorType("float32", (None, None))("x")
    ones = np.ones((100, 100), "float32")
    y, mask = D.dropout(x, 0.25, RandomStream(1), return_mask=True)
    a, m = evaluate([y, mask], {x: ones})
    np.testing.assert_allclose(a, m / np.float32(0.75))
    assert abs(a.mean() - 1) < 0.03
    np.testing.assert_array_equal(evaluate([D.dropout(x, 0.25, 1)], {x: ones})[0], a)
    assert (evaluate([D.dropout(x, 0.25, 2)], {x: ones})[0] != a).any()
    assert D.dropout(x, 0.25, 1, train=False) is x
    unscaled = evaluate([D.dropout(x, 0.25, 1, scale=False)], {x: ones})[0]
    np.testing.assert_array_equal(unscaled, m)


def test_dropout_gradient_uses_the_mask_of_the_forward_pass():
    x = TensorType("float64", (None,))("x")
    y = D.dropout(x, 0.5, 7)
    value, slope = evaluate([y, grad(y.sum(), x)], {x: np.ones(50)})
    np.testing.assert_array_equal(value, slope)


def test_symbolic_rate_and_training_flag():
    x, rate = TensorType("float32", (None,))("x"), TensorType("float32", ())("rate")
    train = TensorType("int8", ())("train")
    y = D.dropout(x, rate, 7, train=train)
    ones = np.ones(1000, "float32")
    on, off = (
        evaluate([y], {x: ones, rate: np.float32(0.9), train: np.int8(t)})[0] for t in (1, 0)
    )
    np.testing.assert_array_equal(off, ones)
    assert (on == 0).mean() > 0.8


def test_spatial_dropout_takes_whole_maps():
    x = TensorType("float32", (None,) * 4)("x")
    y = evaluate([D.spatial_dropout(x, 0.5, 7)], {x: np.ones((4, 8, 3, 3), "float32")})[0]
    assert set(np.unique(y)) == {0, 2}
    assert (y == y[:, :, :1, :1]).all()


@pytest.mark.parametrize("p", [-0.1, 1.5])
def test_a_rate_that_is_no_probability(p):
    with pytest.raises(ValueError, match="probability"):
        D.dropout(TensorType("float32", (None,))(), p)


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda s: s.normal((3,), std=-1), "normal: wanted std at least 0, got -1"),
        (lambda s: s.normal((2,), std=np.array([1.0, -2.0])), r"std at least 0, got \[1.0, -2.0\]"),
        (lambda s: s.truncated_normal((3,), std=-1.0), "wanted std at least 0"),
        (lambda s: s.binomial((3,), p=2), "binomial: wanted p from 0 to 1, got 2"),
        (lambda s: s.binomial((3,), n=4, p=-0.5), "wanted p from 0 to 1"),
        (lambda s: s.exponential((3,), scale=-1), "exponential: wanted scale at least 0"),
        (lambda s: s.cauchy((3,), scale=-1), "cauchy: wanted scale"),
        (lambda s: s.gamma((3,), shape=-1), "gamma: wanted shape at least 0"),
        (lambda s: s.chisquare((3,), df=0), "chisquare: wanted df above 0"),
        (lambda s: s.beta((3,), a=1, b=0), "beta: wanted b above 0"),
        (lambda s: s.dirichlet(None, [1.0, 0.0]), "dirichlet: wanted alpha above 0"),
        (lambda s: s.von_mises((3,), kappa=-1), "wanted kappa at least 0"),
        (lambda s: s.geometric((3,), p=1.5), "geometric: wanted p from 0 to 1"),
        (lambda s: s.negative_binomial((3,), n=0), "wanted n above 0"),
    ],
)
def test_numbers_that_no_distribution_has_are_refused(draw, message):
    with pytest.raises(OptionError, match=message):
        draw(RandomStream(1))


def test_numbers_at_the_edges_of_their_ranges_are_taken():
    s = RandomStream(1)
    draws = [s.normal((3,), 2, std=0), s.binomial((3,), p=1), s.binomial((3,), p=0)]
    for values, wanted in zip(evaluate(draws, {}), (2, 1, 0), strict=True):
        np.testing.assert_array_equal(values, [wanted] * 3)


def test_a_size_is_whole_and_weights_are_one_for_each_element():
    s = RandomStream(1)
    with pytest.raises(TypeMismatch, match="whole numbers, got \\(2.5,\\)"):
        s.uniform((2.5,))
    assert s.uniform((2.0,)).type.shape == (2,)
    for a in (3, [1.0, 2.0, 3.0]):
        with pytest.raises(ShapeMismatch, match="each of the 3 elements of a, got 2"):
            s.choice((4,), a, p=[0.5, 0.5])
    assert s.choice((4,), 2, p=[0.5, 0.5]).type.ndim == 1
