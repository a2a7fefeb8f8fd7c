"""Streams of random variables: a seed, and a state for each random variable.

Each call makes a shared uint64 vector (key, counter) with a ``default_update``, so that a function
which uses the variable draws new numbers at every call, and one variable used twice in a function
has the same numbers in both places. Stream ``i`` of a seed has the key
``rng_philox.stream_key(seed, i)``; the counter starts at 0.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Any

import numpy as np

from symdnn.errors import OptionError, ShapeMismatch
from symdnn.graph.dims import Dim
from symdnn.graph.names.torch_words import advised_methods
from symdnn.graph.operators import operator
from symdnn.graph.type import TensorType
from symdnn.graph.typing import Array, DtypeLike, ShapeLike, TensorLike
from symdnn.graph.values.storage import Storage
from symdnn.graph.variable import Constant, Shared, Variable, as_variable, constant
from symdnn.ops.core.shape import dims_of
from symdnn.ops.elementwise.arithmetic import cast
from symdnn.ops.random import random as draws
from symdnn.ops.random.rng_philox import fold_seed, stream_key
from symdnn.ops.random.sizes import (
    check_parameters,
    count_of,
    float_dtype,
    is_number,
    probabilities,
    product_of,
    size_dims,
)
from symdnn.ops.random.variates import Variates

#: Standard deviation of a standard normal distribution cut off at -2 and 2.
_STD_OF_TRUNCATED = 0.8796256610342398

#: NumPy's, PyTorch's and JAX's keywords, each with Theano's.
_WORDS = {
    **dict.fromkeys(("loc", "mean", "mu"), "avg"),
    **dict.fromkeys(("scale", "stddev", "sigma"), "std"),
    "rate": "lam",
    "minval": "low", "maxval": "high", "total_count": "n", "probs": "p", "sample_shape": "size",
}  # fmt: skip

__all__ = ["MRG_RandomStreams", "RandomStream", "RandomStreams", "size_dims"]


@advised_methods(**_WORDS)
class RandomStream(Variates):
    """Random variables from one seed, under the names of Theano's ``RandomStreams``.

    ``seed`` is a non-negative int (or several), or None for one from the operating system.
    ``nstreams`` and ``target`` of the methods are accepted and have no effect.

    >>> from symdnn.graph.evaluate import evaluate
    >>> u = RandomStream(seed=1).uniform((2,))
    >>> evaluate([u], {})[0].shape
    (2,)
    """

    def __init__(self, seed: Any = None) -> None:
        self._seed = self._checked_seed(seed)
        #: Pairs (state, its next value) of the variables made so far.
        self.state_updates: list[tuple[Shared, Variable]] = []

    def _checked_seed(self, seed: Any) -> int:
        if seed is None:
            return int.from_bytes(os.urandom(8), "little")
        parts = list(seed) if isinstance(seed, list | tuple | np.ndarray) else [seed]
        try:
            whole = [int(p) for p in parts]
        except (TypeError, ValueError):
            whole = []
        if not whole or any(p != q for p, q in zip(whole, parts, strict=True)) or min(whole) < 0:
            raise OptionError(f"seed={seed!r}: wanted a non-negative integer, or several")
        return fold_seed(whole)

    def seed(self, seed: Any = None) -> None:
        """Restart all streams from another seed (None: the seed of the constructor)."""
        if seed is not None:
            self._seed = self._checked_seed(seed)
        for i, (state, _) in enumerate(self.state_updates):
            state.set_value(self._initial(i))

    def updates(self) -> list[tuple[Shared, Variable]]:
        """The default updates of all variables made so far, for ``no_default_updates``."""
        return list(self.state_updates)

    def _initial(self, index: int) -> Array:
        return np.array([stream_key(self._seed, index), 0], np.uint64)

    def new_state(self) -> Shared:
        """The state of the next stream; :meth:`register` gives it its update."""
        index = len(self.state_updates)
        return Shared(draws.STATE_TYPE, Storage(self._initial(index)), f"random_state_{index}")

    def register(self, state: Shared, new: Variable) -> None:
        """Let functions that read ``state`` write ``new`` back."""
        state.default_update = new
        self.state_updates.append((state, new))

    def draw(
        self,
        build: Callable[[Shared], tuple[Variable, Variable]],
        state: Shared | None = None,
    ) -> Variable:
        """The values of ``build(state) -> (values, next state)``, on a new state unless given.

        ``values.tag.rng`` is the state, ``values.tag.update`` the pair (state, next state).
        """
        state = self.new_state() if state is None else state
        values, new = build(state)
        self.register(state, new)
        values.tag.rng, values.tag.update = state, (state, new)
        return values

    # -- distributions ------------------------------------------------------------------------

    def unit_uniform(self, dims: list[Dim], dtype: str, size: Any, nstreams: Any) -> Variable:
        """Uniform values of (0, 1). ``size`` is what :meth:`uniform` was called with."""
        return self.draw(lambda state: draws.random_uniform(state, dims, dtype))

    def uniform(
        self,
        size: ShapeLike | None = None,
        low: TensorLike = 0.0,
        high: TensorLike = 1.0,
        ndim: int | None = None,
        dtype: Any = None,
        nstreams: object = None,
        target: object = None,
    ) -> Variable:
        """Uniform values of (low, high), both ends excluded up to rounding.

        ``dtype=None`` is the upcast of ``floatX``, ``low`` and ``high``; these may be tensors
        that broadcast to ``size``, and gradients flow to them.
        """
        lo, hi = as_variable(low), as_variable(high)
        kind = float_dtype(dtype, lo, hi)
        dims = size_dims(size, ndim, [lo, hi])
        u = self.unit_uniform(dims, kind, size, nstreams)
        if is_number(lo, 0) and is_number(hi, 1):
            return u
        lo, hi = cast(lo, kind), cast(hi, kind)
        return u * (hi - lo) + lo

    def normal(
        self,
        size: ShapeLike | None = None,
        avg: TensorLike = 0.0,
        std: TensorLike = 1.0,
        ndim: int | None = None,
        dtype: Any = None,
        nstreams: object = None,
        truncate: bool = False,
        target: object = None,
    ) -> Variable:
        """Normal values of mean ``avg`` and standard deviation ``std``.

        ``truncate`` keeps them within two standard deviations, which makes the deviation of the
        result 0.88 ``std``. ``avg`` and ``std`` may be tensors, and gradients flow to them.
        """
        check_parameters("normal", std=std)
        mean, deviation = as_variable(avg), as_variable(std)
        kind = float_dtype(dtype, mean, deviation)
        dims = size_dims(size, ndim, [mean, deviation])
        z = self.draw(lambda state: draws.random_normal(state, dims, kind, truncate))
        if is_number(mean, 0) and is_number(deviation, 1):
            return z
        return z * cast(deviation, kind) + cast(mean, kind)

    def truncated_normal(
        self,
        size: ShapeLike,
        avg: TensorLike = 0.0,
        std: TensorLike = 1.0,
        ndim: int | None = None,
        dtype: Any = None,
        nstreams: object = None,
        target: object = None,
    ) -> Variable:
        """Normal values truncated on both sides, of standard deviation ``std`` after truncation.

        They are truncated at two standard deviations of a wider normal distribution. In
        ``normal(truncate=True)`` the deviation is that before truncation, as in Theano.
        """
        check_parameters("truncated_normal", std=std)
        mean, deviation = as_variable(avg), as_variable(std)
        kind = float_dtype(dtype, mean, deviation)
        wide = cast(deviation, kind) / constant(_STD_OF_TRUNCATED, dtype=kind)
        return self.normal(size, mean, wide, ndim, kind, truncate=True)

    def binomial(
        self,
        size: ShapeLike | None = None,
        n: TensorLike = 1,
        p: TensorLike = 0.5,
        ndim: int | None = None,
        dtype: DtypeLike = "int64",
        nstreams: object = None,
        target: object = None,
    ) -> Variable:
        """Numbers of successes in ``n`` trials with probability ``p``.

        ``n`` is a non-negative integer or a symbolic one, or a tensor of them; ``n`` and ``p``
        broadcast to ``size``. Each trial takes one number of the stream.
        """
        check_parameters("binomial", p=p)
        if isinstance(n, Constant) and n.type.ndim == 0:
            n = n.data.item()
        kind, prob = TensorType(dtype).dtype, as_variable(p)
        if isinstance(n, int | np.integer) and n == 1:
            dims = size_dims(size, ndim, [prob])
            return self.draw(lambda state: draws.random_bernoulli(state, prob, dims, kind))
        number = count_of("binomial", n)
        dims = size_dims(size, ndim, [number, prob])
        most = number if number.type.ndim == 0 else operator("maximum")(number.max(), 0)
        wide = prob.dimshuffle([*range(prob.type.ndim), "x"])
        trials = self.draw(lambda s: draws.random_bernoulli(s, wide, [*dims, most], "int64"))
        if number.type.ndim:
            each = number.dimshuffle([*range(number.type.ndim), "x"])
            trials = trials * operator("lt")(operator("arange")(most), each)
        return cast(trials.sum(axis=len(dims)), kind)

    def poisson(
        self,
        size: ShapeLike | None = None,
        lam: TensorLike = 1.0,
        ndim: int | None = None,
        dtype: DtypeLike = "int64",
        nstreams: object = None,
        target: object = None,
    ) -> Variable:
        """Numbers of events with the mean ``lam``, a number or a tensor that fits ``size``.

        Raises :class:`~symdnn.errors.DataError` in a call for a negative mean.
        """
        kind, rate = TensorType(dtype).dtype, as_variable(lam)
        dims = size_dims(size, ndim, [rate])
        return self.draw(lambda state: draws.random_poisson(state, rate, dims, kind))

    def random_integers(
        self,
        size: ShapeLike | None = None,
        low: TensorLike = 0,
        high: TensorLike = 1,
        ndim: int | None = None,
        dtype: Any = "int64",
        nstreams: object = None,
        target: object = None,
    ) -> Variable:
        """Integers from ``low`` to ``high``, both included."""
        lo, hi = as_variable(low), as_variable(high)
        dims, top = size_dims(size, ndim, [lo, hi]), cast(hi, "int64") + 1
        return self.draw(lambda state: draws.random_integers(state, lo, top, dims, dtype))

    def permutation(
        self,
        size: ShapeLike | None = None,
        n: int | Variable = 1,
        ndim: int | None = None,
        dtype: Any = "int64",
    ) -> Variable:
        """Permutations of ``0 .. n-1``, of shape ``(*size, n)``."""
        dims = size_dims(size, ndim)
        return self.draw(lambda state: draws.random_permutation(state, n, dims, dtype))

    def multinomial(
        self,
        size: ShapeLike | None = None,
        n: Any = 1,
        pvals: Any = None,
        ndim: int | None = None,
        dtype: DtypeLike = "int64",
        nstreams: Any = None,
        target: Any = None,
    ) -> Variable:
        """The count of each class in ``n`` draws with probabilities ``pvals[..., class]``.

        The shape is ``(*size, classes)``; ``size=None`` means one experiment for each row of
        ``pvals``.
        """
        p = probabilities("multinomial", pvals)
        dims = list(dims_of(p))[:-1] if size is None else size_dims(size, ndim)
        kind = TensorType(dtype).dtype
        return self.draw(lambda state: draws.random_multinomial(state, n, p, dims, kind))

    def choice(
        self,
        size: ShapeLike | None = None,
        a: TensorLike = 2,
        replace: bool = True,
        p: Any = None,
        ndim: int | None = None,
        dtype: DtypeLike = "int64",
        nstreams: Any = None,
        target: Any = None,
    ) -> Variable:
        """Elements of ``a`` (a vector, or a number for ``0 .. a-1``), as ``numpy.random.choice``.

        ``p`` are the probabilities of the elements; without ``replace`` no element occurs twice.
        """
        pool = as_variable(a)
        self._check_weights(pool, p)
        count = dims_of(pool)[0] if pool.type.ndim == 1 else a
        dims = size_dims(size, ndim)
        index = self._indices(dims, count, replace, p, dtype)
        return operator("take")(pool, index) if pool.type.ndim == 1 else index

    @staticmethod
    def _check_weights(pool: Variable, p: Any) -> None:
        """Refuse weights ``p`` that are known to be fewer or more than the elements."""
        if p is None:
            return
        known = pool.type.shape[0] if pool.type.ndim == 1 else None
        if pool.type.ndim == 0 and isinstance(pool, Constant):
            known = int(pool.data)
        weights = as_variable(p).type.shape
        if weights and known is not None and weights[-1] not in (None, known):
            wanted = f"one weight p for each of the {known} elements of a"
            raise ShapeMismatch("choice", wanted, f"{weights[-1]} of them")

    def _indices(self, dims: list[Dim], n: Any, replace: bool, p: Any, dtype: Any) -> Variable:
        if p is None and replace:
            return self.draw(lambda s: draws.random_integers(s, 0, n, dims, dtype))
        total = math.prod(dims) if all(isinstance(d, int) for d in dims) else product_of(dims)
        if p is None:
            if isinstance(total, int) and isinstance(n, int) and total > n:
                raise OptionError(f"choice: {total} elements of {n} without replace: too many")
            order = self.draw(lambda s: draws.random_permutation(s, n, (), dtype))
            return order[:total].reshape(dims, ndim=len(dims))
        weights = probabilities("choice", p)
        if replace:
            return self.draw(lambda s: draws.random_categorical(s, weights, dims, dtype))
        found = self.draw(lambda s: draws.random_subset(s, weights, total, (), dtype))
        return found.reshape(dims, ndim=len(dims))

    def shuffle_row_elements(self, input: TensorLike) -> Variable:
        """``input`` with the elements of each row (last dimension) in a random order."""
        x = as_variable(input)
        *lead, n = dims_of(x)
        order = self.permutation(lead or None, n=n)
        rows = product_of(lead) if lead else 1
        start = operator("arange")(rows).reshape((*lead, 1), ndim=x.type.ndim) * n
        flat = x.flatten(1)
        return operator("take")(flat, order + cast(start, "int64"))


class RandomStreams(RandomStream):
    """Theano's ``shared_randomstreams.RandomStreams`` (the numbers are symdnn's own)."""


@advised_methods(**_WORDS)
class MRG_RandomStreams(RandomStream):
    """Theano's ``rng_mrg.MRG_RandomStreams`` by name and use; the numbers are symdnn's own.

    A seed of 0 is refused, as in Theano.
    """

    def __init__(self, seed: Any = 12345) -> None:
        super().__init__(seed)

    def _checked_seed(self, seed: object) -> int:
        given = np.atleast_1d(np.asarray(12345 if seed is None else seed, dtype=object))
        if not any(given):
            raise OptionError("seed=0: wanted another number, since MRG_RandomStreams refuses 0")
        return super()._checked_seed(list(given))

    def choice(
        self,
        size: ShapeLike | None = 1,
        a: Any = None,
        replace: bool = True,
        p: TensorLike | None = None,
        ndim: int | None = None,
        dtype: Any = "int64",
        nstreams: Any = None,
        target: Any = None,
    ) -> Variable:
        """``size`` class indices for each row of a matrix ``p``: shape (rows, size).

        With ``a``, or a vector ``p``, it is :meth:`RandomStream.choice`.
        """
        weights = None if p is None else as_variable(p)
        if weights is None or weights.type.ndim == 1:
            count = a if weights is None or a is not None else dims_of(weights)[0]
            return super().choice(size, count, replace, p, ndim, dtype)
        rows, (number,) = dims_of(weights)[0], size_dims(1 if size is None else size)
        if not replace:
            return self.draw(lambda s: draws.random_subset(s, weights, number, [rows], dtype))
        wide = weights.dimshuffle(0, "x", 1)
        return self.draw(lambda s: draws.random_categorical(s, wide, [rows, number], dtype))

    def multinomial_wo_replacement(
        self,
        size: ShapeLike | None = None,
        n: Any = 1,
        pvals: Any = None,
        replace: bool = False,
        ndim: int | None = None,
        dtype: DtypeLike = "int64",
        nstreams: Any = None,
        target: Any = None,
    ) -> Variable:
        """``n`` distinct classes for each row of ``pvals`` (:meth:`choice` without replacing)."""
        return self.choice(n, None, replace, pvals, ndim, dtype)


OPERATORS: dict[str, Any] = {}
