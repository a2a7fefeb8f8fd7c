"""The words of the table in symdnn, PyTorch, JAX, PyTensor and, as the truth, in mpmath.

A dialect has the words as methods, ``M`` among them, and :meth:`Dialect.run`.
"""

from __future__ import annotations

import ast
from functools import lru_cache
from typing import Any

import numpy as np

LABELS = np.array([1, 3, 0, 2])
ONEHOT = np.eye(4)[LABELS]
WEIGHTS = np.array([[1, 0.5, 2, 0], [0.25, 1, 1, 3], [2, 0, 0, 1], [1, 1, 1, 1]])
MOVES = ("none", "reshape", "flatten", "dimshuffle", "slice", "join", "cast")
REDUCTIONS = ("sum", "mean", "pick")
#: The element of a result that "pick" takes.
PICKED = 3


@lru_cache(None)
def compiled(text: str) -> Any:
    return [
        (s.targets[0].id if isinstance(s, ast.Assign) else None,  # type: ignore[attr-defined]
         compile(ast.Expression(s.value), text, "eval"))  # type: ignore[attr-defined]
        for s in ast.parse(text).body
    ]  # fmt: skip


class Dialect:
    """Base: words made of other words; ``np`` has exp, log and their like."""

    np: Any = None
    move = "none"

    def evaluate(self, text: str, value: Any) -> Any:
        """The value of a program on ``x`` or ``X``."""
        words = {"x": value, "X": value}
        for name, code in compiled(text):
            for word in code.co_names:
                if word not in words and word not in ("onehot", "A"):
                    words[word] = getattr(self, word, None)
                    if words[word] is None:
                        raise NotImplementedError(f"there is no {word}")
            found = eval(code, {}, words | self.constants(value))
            if name is not None:
                words[name] = found
        return found

    def constants(self, beside: Any) -> dict[str, Any]:
        """What the programs may multiply with."""
        if beside.ndim == 1:
            return {}
        return {"onehot": self.constant(ONEHOT, beside), "A": self.constant(WEIGHTS, beside)}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.np, name)

    def M(self, v: Any) -> Any:
        return getattr(self, f"to_{self.move}")(v)

    def to_none(self, v: Any) -> Any:
        return v

    def to_reshape(self, v: Any) -> Any:
        return v.reshape((-1, 2))

    def to_flatten(self, v: Any) -> Any:
        return v.reshape((-1,))

    def to_dimshuffle(self, v: Any) -> Any:
        return v[None, :, None] if v.ndim == 1 else v.T[:, None]

    def to_slice(self, v: Any) -> Any:
        return v[::-1]

    def to_join(self, v: Any) -> Any:
        return self.np.concatenate([v[2:], v[:2]])

    def constant(self, array: Any, beside: Any) -> Any:
        return array

    def xlogy(self, a: Any, b: Any) -> Any:
        return a * self.np.log(b)

    def rowsum(self, v: Any) -> Any:
        return v.sum(axis=1, keepdims=True)

    def rowmean(self, v: Any) -> Any:
        return v.mean(axis=1, keepdims=True)

    def rowmax(self, v: Any) -> Any:
        return v.max(axis=1, keepdims=True)

    def rowprod(self, v: Any) -> Any:
        return v.prod(axis=1, keepdims=True)

    def var(self, v: Any) -> Any:
        return v.var(axis=1, keepdims=True)

    def pick(self, v: Any) -> Any:
        return v[self.np.arange(4), LABELS]

    def take(self, v: Any) -> Any:
        return self.np.take_along_axis(v, LABELS[:, None], 1)

    def copies(self, v: Any) -> Any:
        """A stack of four matrices: ``v`` times powers of 2."""
        return self.np.stack([v, v * 2, v * 0.5, v * 4])

    def binary_crossentropy(self, p: Any, t: float) -> Any:
        return -t * self.np.log(p) - (1 - t) * self.np.log(1 - p)


def reduced(v: Any, how: str, factor: float) -> Any:
    """The cost of a result."""
    flat = v.reshape((-1,))
    return factor * (flat.sum() if how == "sum" else flat.mean() if how == "mean" else flat[PICKED])


class Symdnn(Dialect):
    """symdnn: compiled, value and gradient in one function."""

    mode: Any = None

    def __init__(self) -> None:
        import symdnn
        import symdnn.tensor as T

        self.np, self.symdnn = T, symdnn
        self.version = symdnn.__version__
        self.sigmoid, self.softplus, self.log_sigmoid = T.sigmoid, T.softplus, T.log_sigmoid
        self.xlogy = T.xlogy0
        self.betainc_2_3 = lambda v: T.betainc(2, 3, v)
        self.binary_crossentropy = T.nnet.binary_crossentropy
        self.det, self.inv = T.linalg.det, T.linalg.inv
        self.slogdet = lambda v: T.linalg.slogdet(v)[1]
        self.rfft, self.irfft = T.fft.rfft, T.fft.irfft
        self.power = lambda z: abs(z) ** 2
        self._add_sparse()
        self._add_distributions()

    def _add_sparse(self) -> None:
        import symdnn.sparse as S

        self.sparse, self.sparse_dot = S.csr_from_dense, S.dot
        self.dense = lambda a: a.toarray()
        self.structured = lambda f, a: a.with_data(f(a.data))

    def _add_distributions(self) -> None:
        from symdnn import distributions as D

        def log_prob(kind: Any, *parameters: float) -> Any:
            # Python numbers alone would be floatX.
            return lambda v: kind(*[np.dtype(v.dtype).type(p) for p in parameters]).log_prob(v)

        def cdf(kind: Any, *parameters: float) -> Any:
            return lambda v: kind(*[np.dtype(v.dtype).type(p) for p in parameters]).cdf(v)

        self.bernoulli_of_logits = lambda v: D.Bernoulli(logits=v).log_prob(v.ones_like())
        self.logistic, self.gumbel = log_prob(D.Logistic, 0, 1), log_prob(D.Gumbel, 0, 1)
        self.student_3 = log_prob(D.StudentT, 3)
        self.gamma_2_3, self.beta_2_3 = log_prob(D.Gamma, 2, 3), log_prob(D.Beta, 2, 3)
        self.normal_cdf, self.exponential_cdf = cdf(D.Normal, 0, 1), cdf(D.Exponential, 1)
        self.categorical = lambda v: D.Categorical(logits=v).log_prob(LABELS)

    def softmax(self, v: Any) -> Any:
        return self.np.nnet.softmax(v, axis=1)

    def log_softmax(self, v: Any) -> Any:
        return self.np.nnet.logsoftmax(v, axis=1)

    def logsumexp(self, v: Any) -> Any:
        return self.np.logsumexp(v, axis=1)

    def cross_entropy(self, v: Any) -> Any:
        return self.np.nnet.categorical_crossentropy(self.softmax(v), LABELS)

    def to_dimshuffle(self, v: Any) -> Any:
        return v.dimshuffle("x", 0, "x") if v.ndim == 1 else v.dimshuffle(1, "x", 0)

    def to_cast(self, v: Any) -> Any:
        return v.astype("float64")

    def constant(self, array: Any, beside: Any) -> Any:
        return self.np.constant(array.astype(beside.dtype))

    def run(self, text: str, points: Any, how: str, factor: float) -> tuple[Any, Any]:
        x = self.np.TensorType(str(points.dtype), (None,) * points.ndim)("x")
        y = self.evaluate(text, x)
        slope = self.symdnn.grad(reduced(y, how, np.float32(factor)), x)
        f = self.symdnn.function([x], [y, slope], mode=self.mode)
        return tuple(np.asarray(v) for v in f(points))  # type: ignore[return-value]


class Torch(Dialect):
    """PyTorch, eager."""

    def __init__(self) -> None:
        import torch

        self.np = self.torch = torch
        self.version = torch.__version__
        self.softplus = torch.nn.functional.softplus
        self.log_sigmoid = torch.nn.functional.logsigmoid
        self.xlogy = torch.xlogy
        special, linalg, fft = torch.special, torch.linalg, torch.fft
        self.log_ndtr, self.i0e, self.i1e = special.log_ndtr, special.i0e, special.i1e
        self.ndtri, self.gammaln, self.digamma = special.ndtri, special.gammaln, special.digamma
        self.inv, self.slogdet = linalg.inv, lambda v: linalg.slogdet(v)[1]
        self.dot, self.rfft, self.irfft = torch.matmul, fft.rfft, fft.irfft
        self.power = lambda z: z.abs() ** 2
        self.normal_cdf = torch.distributions.Normal(0.0, 1.0).cdf
        self.exponential_cdf = torch.distributions.Exponential(1.0).cdf
        self._add_distributions()

    def _add_distributions(self) -> None:
        D, tensor = self.torch.distributions, self.torch.tensor

        def log_prob(kind: Any, *parameters: float) -> Any:
            return lambda v: kind(*[tensor(float(p), dtype=v.dtype) for p in parameters]).log_prob(
                v
            )

        self.bernoulli_of_logits = lambda v: D.Bernoulli(logits=v).log_prob(self.torch.ones_like(v))
        self.gumbel, self.student_3 = log_prob(D.Gumbel, 0, 1), log_prob(D.StudentT, 3)
        self.gamma_2_3, self.beta_2_3 = log_prob(D.Gamma, 2, 3), log_prob(D.Beta, 2, 3)
        self.categorical = lambda v: D.Categorical(logits=v).log_prob(tensor(LABELS))

    def to_slice(self, v: Any) -> Any:
        return v.flip(0)

    def to_cast(self, v: Any) -> Any:
        return v.double()

    def constant(self, array: Any, beside: Any) -> Any:
        return self.torch.tensor(array, dtype=beside.dtype)

    def rowmax(self, v: Any) -> Any:
        return v.amax(1, keepdim=True)

    def rowprod(self, v: Any) -> Any:
        return v.prod(1, keepdim=True)

    def sqrt(self, v: Any) -> Any:
        return self.torch.sqrt(v)

    def var(self, v: Any) -> Any:
        return v.var(1, correction=0, keepdim=True)

    def softmax(self, v: Any) -> Any:
        return v.softmax(1)

    def log_softmax(self, v: Any) -> Any:
        return v.log_softmax(1)

    def logsumexp(self, v: Any) -> Any:
        return v.logsumexp(1)

    def take(self, v: Any) -> Any:
        return v.gather(1, self.torch.tensor(LABELS)[:, None])

    def cross_entropy(self, v: Any) -> Any:
        labels = self.torch.tensor(LABELS)
        return self.torch.nn.functional.cross_entropy(v, labels, reduction="none")

    def binary_crossentropy(self, p: Any, t: float) -> Any:
        f = self.torch.nn.functional.binary_cross_entropy
        return f(p, self.torch.full_like(p, t), reduction="none")

    def run(self, text: str, points: Any, how: str, factor: float) -> tuple[Any, Any]:
        x = self.torch.tensor(points, requires_grad=True)
        y = self.evaluate(text, x)
        (slope,) = self.torch.autograd.grad(reduced(y, how, factor), x)
        return y.detach().numpy(), slope.numpy()


class Jax(Dialect):
    """JAX, compiled."""

    def __init__(self) -> None:
        import jax

        jax.config.update("jax_enable_x64", True)
        self.np, self.jax = jax.numpy, jax
        self.version = jax.__version__
        self.sigmoid, self.softplus = jax.nn.sigmoid, jax.nn.softplus
        self.log_sigmoid = jax.nn.log_sigmoid
        special = jax.scipy.special
        self.erf, self.erfc, self.xlogy = special.erf, special.erfc, special.xlogy
        self.log_ndtr, self.logit, self.i0e = special.log_ndtr, special.logit, special.i0e
        self.betainc_2_3 = lambda v: special.betainc(2.0, 3.0, v)
        linalg, fft, stats = jax.numpy.linalg, jax.numpy.fft, jax.scipy.stats
        self.i1e, self.ndtri, self.gammaln = special.i1e, special.ndtri, special.gammaln
        self.digamma = special.digamma
        self.det, self.inv, self.slogdet = linalg.det, linalg.inv, lambda v: linalg.slogdet(v)[1]
        self.rfft, self.irfft, self.power = fft.rfft, fft.irfft, lambda z: abs(z) ** 2
        self.normal_cdf, self.exponential_cdf = stats.norm.cdf, stats.expon.cdf
        self.logistic = stats.logistic.logpdf
        self.gumbel = stats.gumbel_r.logpdf
        self.student_3 = lambda v: stats.t.logpdf(v, 3)
        self.gamma_2_3 = lambda v: stats.gamma.logpdf(v, 2, scale=1 / 3)
        self.beta_2_3 = lambda v: stats.beta.logpdf(v, 2, 3)
        self.bernoulli_of_logits = jax.nn.log_sigmoid
        self.categorical = lambda v: self.pick(jax.nn.log_softmax(v, axis=1))

    def to_cast(self, v: Any) -> Any:
        return v.astype("float64")

    def constant(self, array: Any, beside: Any) -> Any:
        return self.np.asarray(array, beside.dtype)

    def softmax(self, v: Any) -> Any:
        return self.jax.nn.softmax(v, axis=1)

    def log_softmax(self, v: Any) -> Any:
        return self.jax.nn.log_softmax(v, axis=1)

    def logsumexp(self, v: Any) -> Any:
        return self.jax.scipy.special.logsumexp(v, axis=1)

    def cross_entropy(self, v: Any) -> Any:
        return -self.pick(self.log_softmax(v))

    def run(self, text: str, points: Any, how: str, factor: float) -> tuple[Any, Any]:
        def cost(x: Any) -> tuple[Any, Any]:
            y = self.evaluate(text, x)
            return reduced(y, how, factor), y

        (_, y), slope = self.jax.jit(self.jax.value_and_grad(cost, has_aux=True))(points)
        return np.asarray(y), np.asarray(slope)


class PyTensor(Dialect):
    """PyTensor, compiled; value and gradient in one function."""

    def __init__(self) -> None:
        import pytensor
        import pytensor.tensor as pt

        self.np, self.pytensor = pt, pytensor
        self.version = pytensor.__version__
        self.log_sigmoid = lambda v: -pt.softplus(-v)
        self.xlogy = lambda a, b: pt.switch(pt.eq(a, 0), 0.0, a * pt.log(b))

    def log_ndtr(self, v: Any) -> Any:
        pt = self.np
        return pt.switch(
            pt.lt(v, -1), pt.log(pt.erfcx(-v / np.sqrt(2)) / 2) - v**2 / 2,
            pt.log1p(-pt.erfc(v / np.sqrt(2)) / 2),
        )  # fmt: skip

    def to_dimshuffle(self, v: Any) -> Any:
        return v.dimshuffle("x", 0, "x") if v.ndim == 1 else v.dimshuffle(1, "x", 0)

    def to_cast(self, v: Any) -> Any:
        return v.astype("float64")

    def constant(self, array: Any, beside: Any) -> Any:
        return self.np.constant(array.astype(beside.dtype))

    def softmax(self, v: Any) -> Any:
        return self.np.special.softmax(v, axis=1)

    def log_softmax(self, v: Any) -> Any:
        return self.np.special.log_softmax(v, axis=1)

    def logsumexp(self, v: Any) -> Any:
        return self.np.logsumexp(v, axis=1)

    def cross_entropy(self, v: Any) -> Any:
        return -self.pick(self.log_softmax(v))

    def binary_crossentropy(self, p: Any, t: float) -> Any:
        pt = self.np
        return -(t * pt.log(p) + (1.0 - t) * pt.log(1.0 - p))

    def run(self, text: str, points: Any, how: str, factor: float) -> tuple[Any, Any]:
        x = self.np.tensor("x", dtype=str(points.dtype), shape=(None,) * points.ndim)
        y = self.evaluate(text, x)
        cost = reduced(y, how, np.float32(factor))
        f = self.pytensor.function([x], [y, self.pytensor.grad(cost, x)])
        return tuple(np.asarray(v) for v in f(points))  # type: ignore[return-value]


DIALECTS = {"symdnn": Symdnn, "pytensor": PyTensor, "jax": Jax, "torch": Torch}
