"""Random variables of further distributions, made of uniform, normal and gamma variates.

Location and scale are ordinary arithmetic, so gradients flow to them; to shapes they flow by the
implicit gradients of :mod:`symdnn.ops.random.rejection`.
"""

from __future__ import annotations

from collections.abc import Callable
from math import pi
from typing import Any

import numpy as np

from symdnn.errors import ShapeMismatch, TypeMismatch
from symdnn.graph.dims import Dim
from symdnn.graph.names.torch_words import advised_methods
from symdnn.graph.operators import operator
from symdnn.graph.type import TensorType
from symdnn.graph.typing import DtypeLike, ShapeLike, TensorLike
from symdnn.graph.variable import Shared, Variable, as_variable
from symdnn.ops.core.shape import dims_of
from symdnn.ops.elementwise.activations import sigmoid
from symdnn.ops.elementwise.arithmetic import cast, sgn, sqrt
from symdnn.ops.elementwise.comparison import ge, switch
from symdnn.ops.elementwise.math import exp, log, log1p, tan
from symdnn.ops.elemwise import like
from symdnn.ops.linalg.dot import dot, matmul
from symdnn.ops.random import random as draws
from symdnn.ops.random.rejection import random_log_gamma, random_von_mises
from symdnn.ops.random.sizes import (
    check_parameters,
    float_dtype,
    is_number,
    probabilities,
    size_dims,
)


@advised_methods()
class Variates:
    """The methods of a stream for distributions that NumPy's generators have and Theano's lack.

    ``size``, ``ndim`` and ``dtype`` mean what they mean in
    :meth:`~symdnn.ops.random.random_stream.RandomStream.uniform`: with ``size=None`` the parameters
    give the shape. Numbers and constants out of range are an ``OptionError``; variables give NaN,
    where no error is named.
    """

    draw: Callable[[Callable[[Shared], tuple[Variable, Variable]]], Variable]

    def _standard(
        self, size: Any, ndim: int | None, dtype: DtypeLike | None, *parameters: TensorLike
    ) -> tuple[list[Variable], list[Dim], str]:
        """(the parameters in the result's dtype, dimensions, dtype)."""
        given = [as_variable(p) for p in parameters]
        kind = float_dtype(dtype, *given)
        return [cast(p, kind) for p in given], size_dims(size, ndim, given), kind

    def _open_uniform(self, dims: list[Dim], kind: str) -> Variable:
        return self.draw(lambda state: draws.random_uniform(state, dims, kind))

    def _log_gamma(self, shape: Variable, dims: list[Dim], kind: str) -> Variable:
        return self.draw(lambda state: random_log_gamma(state, shape, dims, kind))

    def exponential(
        self, size: ShapeLike | None = None, scale: TensorLike = 1.0, ndim: int | None = None,
        dtype: Any = None,
    ) -> Variable:  # fmt: skip
        """Exponential values of mean ``scale``."""
        check_parameters("exponential", scale=scale)
        (s,), dims, kind = self._standard(size, ndim, dtype, scale)
        return -log(self._open_uniform(dims, kind)) * s

    def laplace(
        self, size: ShapeLike | None = None, loc: TensorLike = 0.0, scale: TensorLike = 1.0,
        ndim: int | None = None, dtype: Any = None,
    ) -> Variable:  # fmt: skip
        """Laplace's values: ``loc`` and an exponential value of mean ``scale`` to either side."""
        check_parameters("laplace", scale=scale)
        (at, s), dims, kind = self._standard(size, ndim, dtype, loc, scale)
        off = self._open_uniform(dims, kind) - np.float32(0.5)
        return at - s * sgn(off) * log1p(-2 * abs(off))

    def cauchy(
        self, size: ShapeLike | None = None, loc: TensorLike = 0.0, scale: TensorLike = 1.0,
        ndim: int | None = None, dtype: Any = None,
    ) -> Variable:  # fmt: skip
        """Cauchy's values of median ``loc`` and half width ``scale``."""
        check_parameters("cauchy", scale=scale)
        (at, s), dims, kind = self._standard(size, ndim, dtype, loc, scale)
        off = self._open_uniform(dims, kind) - np.float32(0.5)
        return at + s * tan(like(pi, off) * off)

    def logistic(
        self, size: ShapeLike | None = None, loc: TensorLike = 0.0, scale: TensorLike = 1.0,
        ndim: int | None = None, dtype: Any = None,
    ) -> Variable:  # fmt: skip
        """Logistic values of mean ``loc``."""
        check_parameters("logistic", scale=scale)
        (at, s), dims, kind = self._standard(size, ndim, dtype, loc, scale)
        u = self._open_uniform(dims, kind)
        return at + s * (log(u) - log1p(-u))

    def gumbel(
        self, size: ShapeLike | None = None, loc: TensorLike = 0.0, scale: TensorLike = 1.0,
        ndim: int | None = None, dtype: Any = None,
    ) -> Variable:  # fmt: skip
        """Gumbel's values (of the largest of many) of mode ``loc``."""
        check_parameters("gumbel", scale=scale)
        (at, s), dims, kind = self._standard(size, ndim, dtype, loc, scale)
        return at - s * log(-log(self._open_uniform(dims, kind)))

    def gamma(
        self, size: ShapeLike | None = None, shape: TensorLike = 1.0, scale: TensorLike = 1.0,
        ndim: int | None = None, dtype: Any = None,
    ) -> Variable:  # fmt: skip
        """Gamma values of mean ``shape * scale``, with gradients to both.

        >>> from symdnn.ops.random.random_stream import RandomStream
        >>> RandomStream(1).gamma((3,), 2.5).eval().shape
        (3,)
        """
        check_parameters("gamma", shape=shape, scale=scale)
        (a, s), dims, kind = self._standard(size, ndim, dtype, shape, scale)
        return exp(self._log_gamma(a, dims, kind)) * s

    def chisquare(
        self, size: ShapeLike | None = None, df: TensorLike = 1.0, ndim: int | None = None,
        dtype: Any = None,
    ) -> Variable:  # fmt: skip
        """Sums of ``df`` squares of standard normal values."""
        check_parameters("chisquare", df=df)
        (n,), dims, kind = self._standard(size, ndim, dtype, df)
        return 2 * exp(self._log_gamma(n / 2, dims, kind))

    def standard_t(
        self, size: ShapeLike | None = None, df: TensorLike = 1.0, ndim: int | None = None,
        dtype: Any = None,
    ) -> Variable:  # fmt: skip
        """Student's t values of ``df`` degrees of freedom."""
        check_parameters("standard_t", df=df)
        (n,), dims, kind = self._standard(size, ndim, dtype, df)
        z = self.draw(lambda state: draws.random_normal(state, dims, kind))
        return z * sqrt(n / 2) * exp(self._log_gamma(n / 2, dims, kind) / -2)

    def beta(
        self, size: ShapeLike | None = None, a: TensorLike = 1.0, b: TensorLike = 1.0,
        ndim: int | None = None, dtype: Any = None,
    ) -> Variable:  # fmt: skip
        """Beta values of (0, 1) of mean ``a / (a + b)``, with gradients to both."""
        check_parameters("beta", a=a, b=b)
        (x, y), dims, kind = self._standard(size, ndim, dtype, a, b)
        return sigmoid(self._log_gamma(x, dims, kind) - self._log_gamma(y, dims, kind))

    def dirichlet(
        self, size: ShapeLike | None = None, alpha: TensorLike | None = None,
        ndim: int | None = None, dtype: Any = None,
    ) -> Variable:  # fmt: skip
        """Probabilities of classes, of shape ``(*size, classes)``; ``alpha`` has the classes last.

        ``size=None`` means one for each row of ``alpha``.
        """
        a = probabilities("dirichlet", alpha)
        check_parameters("dirichlet", alpha=a)
        kind = float_dtype(dtype, a)
        *lead, classes = dims_of(a)
        dims = [*(lead if size is None else size_dims(size, ndim)), classes]
        logs = self._log_gamma(cast(a, kind), dims, kind)
        return exp(logs - operator("logsumexp")(logs, axis=-1, keepdims=True))

    def von_mises(
        self, size: ShapeLike | None = None, mu: TensorLike = 0.0, kappa: TensorLike = 1.0,
        ndim: int | None = None, dtype: Any = None,
    ) -> Variable:  # fmt: skip
        """Angles around ``mu``, of (-pi, pi), of concentration ``kappa``."""
        check_parameters("von_mises", kappa=kappa)
        (at, k), dims, kind = self._standard(size, ndim, dtype, mu, kappa)
        angle = self.draw(lambda state: random_von_mises(state, k, dims, kind))
        if is_number(as_variable(mu), 0):
            return angle
        turned = angle + at
        return turned - like(2 * pi, turned) * ((turned + like(pi, turned)) / (2 * pi)).floor()

    vonmises = von_mises

    def geometric(
        self, size: ShapeLike | None = None, p: TensorLike = 0.5, ndim: int | None = None,
        dtype: DtypeLike = "int64",
    ) -> Variable:  # fmt: skip
        """Numbers of trials up to the first success, of probability ``p`` each: 1 and more."""
        check_parameters("geometric", p=p)
        (q,), dims, kind = self._standard(size, ndim, None, p)
        u = self._open_uniform(dims, kind)
        one = like(1, q)
        return cast(switch(ge(q, 1), one, (log(u) / log1p(-q)).floor() + 1), dtype)

    def negative_binomial(
        self, size: ShapeLike | None = None, n: TensorLike = 1, p: TensorLike = 0.5,
        ndim: int | None = None, dtype: DtypeLike = "int64",
    ) -> Variable:  # fmt: skip
        """Numbers of failures before ``n`` successes (NumPy's order); ``n`` may be a fraction.

        They are Poisson values of which the means are gamma values.
        """
        check_parameters("negative_binomial", n=n, p=p)
        (k, q), dims, kind = self._standard(size, ndim, None, cast(n, "float64"), p)
        rate = exp(self._log_gamma(k, dims, kind)) * (1 - q) / q
        out = TensorType(dtype).dtype
        return self.draw(lambda state: draws.random_poisson(state, rate, dims, out))

    def categorical(
        self, size: ShapeLike | None = None, p: TensorLike | None = None,
        ndim: int | None = None, dtype: DtypeLike = "int64",
    ) -> Variable:  # fmt: skip
        """Indices of classes with the probabilities ``p[..., class]`` (any positive scale).

        ``size=None`` means one for each row of ``p``; else rows broadcast to ``size``. Raises
        :class:`~symdnn.errors.DataError` in a call for a negative weight, or a row of zeros.
        """
        weights = probabilities("categorical", p)
        dims = list(dims_of(weights))[:-1] if size is None else size_dims(size, ndim)
        out = TensorType(dtype).dtype
        return self.draw(lambda state: draws.random_categorical(state, weights, dims, out))

    def multivariate_normal(
        self, size: ShapeLike | None = None, mean: TensorLike = 0.0,
        cov: TensorLike | None = None, ndim: int | None = None, dtype: Any = None,
        scale_tril: TensorLike | None = None,
    ) -> Variable:  # fmt: skip
        """Normal vectors of shape ``(*size, n)``, of the covariance ``cov`` of shape (..., n, n).

        ``scale_tril`` is its lower Cholesky factor, which may be given instead; ``mean``
        broadcasts to the result. ``size=None`` means one vector for each matrix (and mean).
        """
        given = [m for m in (cov, scale_tril) if m is not None]
        if len(given) != 1:
            raise TypeMismatch("multivariate_normal", "either cov or scale_tril", given)
        at, matrix = as_variable(mean), as_variable(given[0])
        if matrix.type.ndim < 2:
            raise ShapeMismatch("multivariate_normal", "square matrices", matrix.type)
        kind = float_dtype(dtype, at, matrix)
        at, factor = cast(at, kind), cast(matrix, kind)
        if scale_tril is None:
            from symdnn.ops.matrix.cholesky import cholesky

            factor = cholesky(factor)
        n = dims_of(factor)[-1]
        row = factor[..., 0]
        lead = size_dims(None, None, [at, row])[:-1] if size is None else size_dims(size, ndim)
        z = self.draw(lambda state: draws.random_normal(state, [*lead, n], kind))
        if factor.type.ndim == 2:
            return at + dot(z, factor.T)
        column = z.dimshuffle([*range(len(lead) + 1), "x"])
        return at + matmul(factor, column)[..., 0]
