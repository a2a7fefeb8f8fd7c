"""Shapes, signs, equality and supports of transforms; what distributions make of them."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

import symdnn
import symdnn.tensor as T
from symdnn import distributions as D
from symdnn.errors import OptionError
from symdnn.ops.random.random_stream import RandomStream

TWO = np.float64(2)
#: Transforms and the shape of an operand.
TRANSFORMS = {
    "affine": (lambda: D.AffineTransform(np.zeros(3), np.full((2, 1), -2.0)), (3,)),
    "exp": (D.ExpTransform, (4, 3)),
    "power": (lambda: D.PowerTransform(np.array([2.0, -1.0])), (2,)),
    "stick": (D.StickBreakingTransform, (4, 3)),
    "correlations": (D.CorrCholeskyTransform, (4, 6)),
    "reshape": (lambda: D.ReshapeTransform((2, 3), (6,)), (4, 2, 3)),
    "independent": (lambda: D.IndependentTransform(D.ReshapeTransform((2,), (2, 1)), 1), (4, 2)),
    "composed": (lambda: D.ComposeTransform([D.ExpTransform(), D.StickBreakingTransform()]), (3,)),
    "inverse": (lambda: D.StickBreakingTransform().inv, (4, 3)),
    "parts": (lambda: D.CatTransform([D.ExpTransform(), D.TanhTransform()], -1, [1, 2]), (4, 3)),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_shapes_are_those_of_results(name):
    make, shape = TRANSFORMS[name]
    t = make()
    found = t(np.full(shape, 1 / shape[-1])).eval().shape
    assert t.forward_shape(shape) == found
    assert t.inverse_shape(found) == t.inverse(np.full(found, 0.5)).eval().shape
    assert t.inv.forward_shape(found) == t.inverse_shape(found)


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms_with_equal_parameters_are_equal(name):
    make, _ = TRANSFORMS[name]
    assert make() == make()
    assert hash(make()) == hash(make())
    assert make() != D.TanhTransform()


def test_transforms_with_other_parameters_are_not_equal():
    v = T.dscalar()
    assert D.AffineTransform(0.0, v) == D.AffineTransform(0.0, v)
    assert D.AffineTransform(0.0, v) != D.AffineTransform(0.0, T.dscalar())
    assert D.AffineTransform(0.0, 1.0) != D.AffineTransform(0.0, 2.0)
    assert D.ReshapeTransform((2, 3), (6,)) != D.ReshapeTransform((3, 2), (6,))
    assert D.ExpTransform() != D.ExpTransform().inv
    d = D.Normal(0.0, 1.0)
    assert D.CumulativeDistributionTransform(d) == D.CumulativeDistributionTransform(d)
    assert D.CumulativeDistributionTransform(d) != D.CumulativeDistributionTransform(
        D.Cauchy(0.0, 1.0)
    )


FALLING = {
    "affine": [D.AffineTransform(np.float64(1), -TWO)],
    "composed": [D.ComposeTransform([D.AffineTransform(0.0, -TWO)])],
    "inverse": [D.AffineTransform(1.0, -TWO).inv],
    "power": [D.ComposeTransform([D.ExpTransform(), D.PowerTransform(-TWO)])],
    "twice": [D.AffineTransform(0.0, -TWO), D.ComposeTransform([D.AffineTransform(0.0, -TWO)])],
    "independent": [D.IndependentTransform(D.AffineTransform(0.0, -TWO), 0)],
}


@pytest.mark.parametrize("name", FALLING)
def test_probabilities_through_functions_that_fall(name):
    """Against the share of draws."""
    d = D.TransformedDistribution(D.Normal(np.float64(0.3), 1.2), FALLING[name])
    draws = d.sample((20_000,), RandomStream(3)).eval()
    at = np.quantile(draws, [0.1, 0.5, 0.8])
    np.testing.assert_allclose(d.cdf(at).eval(), [0.1, 0.5, 0.8], atol=0.02)
    np.testing.assert_allclose(d.icdf(d.cdf(at)).eval(), at, rtol=1e-9)


def test_what_neither_rises_nor_falls_has_no_sign():
    for t in (D.StickBreakingTransform(), D.AbsTransform(), TRANSFORMS["parts"][0]()):
        with pytest.raises(NotImplementedError, match="sign"):
            _ = t.sign


@pytest.mark.parametrize("symbolic", [False, True])
def test_parameters_of_a_transform_widen_the_batch(symbolic):
    """Each element of the batch has a draw of its own."""
    locs, means = T.dvector(), np.array([-1.0, 0.0, 5.0])
    t = D.AffineTransform(locs if symbolic else means, TWO)
    d = D.TransformedDistribution(D.Normal(np.float64(0), 1.0), [t])
    f = symdnn.function(
        [locs], [d.sample((4,)), d.log_prob(means), *d.batch_shape], on_unused_input="ignore"
    )
    drawn, logs, size = f(means)
    assert (*drawn.shape, size) == (4, 3, 3)
    assert np.unique(np.round(drawn - means, 9)).size == 12
    np.testing.assert_allclose(logs, np.full(3, stats.norm(0, 2).logpdf(0)))


def test_the_support_is_that_of_the_last_transform():
    shares = D.ComposeTransform([D.AffineTransform(0.0, TWO), D.SigmoidTransform()])
    d = D.TransformedDistribution(D.Normal(np.float64(0), 1.0), [shares])
    np.testing.assert_array_equal(d.support.check(np.array([0.5, 2.0])).eval(), [True, False])
    with pytest.raises(OptionError, match="as the value"):
        d.log_prob(np.float64(2))
    roots = D.TransformedDistribution(D.Normal(np.float64(0), 1.0), [D.ExpTransform()])
    back = D.TransformedDistribution(roots, [D.PowerTransform(TWO).inv])
    assert not back.support.check(np.float64(-1)).eval()


def test_constants_that_are_no_numbers_are_refused():
    with pytest.raises(OptionError, match="a number as loc"):
        D.Normal(np.nan, 1.0)
    with pytest.raises(OptionError, match="a number as the value"):
        D.Normal(0.0, 1.0).log_prob(np.array([0.0, np.nan]))
