"""Probability distributions: densities, draws with gradients, divergences; PyTorch's names.

A face: it defines no op. Draws come from a stream (``rng=``, or that of :func:`seed`).

>>> import symdnn
>>> loc = symdnn.tensor.dscalar("loc")
>>> d = Normal(loc, 2.0)
>>> f = symdnn.function([loc], symdnn.grad(d.log_prob(3.0), loc))
>>> float(f(1.0))
0.5
"""

from symdnn.distributions import constraints
from symdnn.distributions.base import Distribution, seed
from symdnn.distributions.bounded import Beta, ContinuousBernoulli, Kumaraswamy, Uniform, VonMises
from symdnn.distributions.classes import (
    Categorical,
    Multinomial,
    OneHotCategorical,
    RelaxedBernoulli,
    RelaxedOneHotCategorical,
)
from symdnn.distributions.combined import (
    Independent,
    MixtureSameFamily,
    TransformedDistribution,
)
from symdnn.distributions.discrete import (
    Bernoulli,
    Binomial,
    Geometric,
    NegativeBinomial,
    Poisson,
)
from symdnn.distributions.folded import HalfCauchy, HalfNormal
from symdnn.distributions.half_line import (
    Chi2,
    Exponential,
    FisherSnedecor,
    Gamma,
    InverseGamma,
    LogNormal,
    Pareto,
    Weibull,
)
from symdnn.distributions.kl import kl_divergence, register_kl
from symdnn.distributions.normal_vectors import MultivariateNormal
from symdnn.distributions.real_line import Cauchy, Gumbel, Laplace, Logistic, Normal, StudentT
from symdnn.distributions.transforms import (
    AffineTransform,
    ComposeTransform,
    ExpTransform,
    LowerCholeskyTransform,
    PowerTransform,
    SigmoidTransform,
    SoftplusTransform,
    StickBreakingTransform,
    TanhTransform,
    Transform,
)
from symdnn.distributions.vectors import Dirichlet

__all__ = [
    "AffineTransform", "Bernoulli", "Beta", "Binomial", "Categorical", "Cauchy", "Chi2",
    "ComposeTransform", "ContinuousBernoulli", "Dirichlet", "Distribution", "ExpTransform",
    "Exponential", "FisherSnedecor", "Gamma", "Geometric", "Gumbel", "HalfCauchy", "HalfNormal",
    "Independent", "InverseGamma", "Kumaraswamy", "Laplace", "LogNormal", "Logistic",
    "LowerCholeskyTransform", "MixtureSameFamily", "Multinomial", "MultivariateNormal",
    "NegativeBinomial", "Normal", "OneHotCategorical", "Pareto", "Poisson", "PowerTransform",
    "RelaxedBernoulli", "RelaxedOneHotCategorical", "SigmoidTransform", "SoftplusTransform",
    "StickBreakingTransform", "StudentT", "TanhTransform", "Transform", "TransformedDistribution",
    "Uniform", "VonMises", "Weibull", "constraints", "kl_divergence", "register_kl", "seed",
]  # fmt: skip
