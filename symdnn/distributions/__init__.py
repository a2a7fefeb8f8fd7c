"""Probability distributions: densities, draws with gradients, divergences; PyTorch's names.

A face: it defines no op. Draws come from a stream (``rng=``, or that of :func:`seed`).

>>> import symdnn
>>> loc = symdnn.tensor.dscalar("loc")
>>> d = Normal(loc, 2.0)
>>> f = symdnn.function([loc], symdnn.grad(d.log_prob(3.0), loc))
>>> float(f(1.0))
0.5
"""

from typing import TYPE_CHECKING as _CHECKED

from symdnn.distributions import constraints, kl_pairs
from symdnn.distributions.base import Distribution, seed
from symdnn.distributions.bounded import *
from symdnn.distributions.classes import *
from symdnn.distributions.combined import *
from symdnn.distributions.discrete import *
from symdnn.distributions.folded import HalfCauchy, HalfNormal
from symdnn.distributions.generalized_pareto import GeneralizedPareto
from symdnn.distributions.half_line import *
from symdnn.distributions.kl import kl_divergence, register_kl
from symdnn.distributions.matrices import LKJCholesky, Wishart
from symdnn.distributions.normal_vectors import LowRankMultivariateNormal, MultivariateNormal
from symdnn.distributions.real_line import *
from symdnn.distributions.registry import *
from symdnn.distributions.transforms import *
from symdnn.distributions.vector_transforms import *
from symdnn.distributions.vectors import Dirichlet
from symdnn.graph.names.elsewhere import refusing as _refusing

#: Entering its formulas is all that this module does.
_ = kl_pairs

__all__ = [
    "AbsTransform", "AffineTransform", "Bernoulli", "Beta", "Binomial", "CatTransform",
    "Categorical", "Cauchy", "Chi2", "ComposeTransform", "ContinuousBernoulli",
    "CorrCholeskyTransform", "CumulativeDistributionTransform", "Dirichlet", "Distribution",
    "ExpTransform", "Exponential", "FisherSnedecor", "Gamma", "GeneralizedPareto", "Geometric",
    "Gumbel", "HalfCauchy", "HalfNormal", "Independent", "IndependentTransform", "InverseGamma",
    "Kumaraswamy", "LKJCholesky", "Laplace", "LogNormal", "Logistic", "LogisticNormal",
    "LowRankMultivariateNormal", "LowerCholeskyTransform", "MixtureSameFamily", "Multinomial",
    "MultivariateNormal", "NegativeBinomial", "Normal", "OneHotCategorical",
    "OneHotCategoricalStraightThrough", "Pareto", "Poisson", "PositiveDefiniteTransform",
    "PowerTransform", "RelaxedBernoulli", "RelaxedOneHotCategorical", "ReshapeTransform",
    "SigmoidTransform", "SoftmaxTransform", "SoftplusTransform", "StackTransform",
    "StickBreakingTransform", "StudentT", "TanhTransform", "Transform", "TransformedDistribution",
    "Uniform", "VonMises", "Weibull", "Wishart", "biject_to", "constraints", "identity_transform",
    "kl_divergence", "register_kl", "seed", "transform_to",
]  # fmt: skip

if not _CHECKED:  # a checker of types would believe that every name exists
    __getattr__ = _refusing(__name__)
