"""Streams of the generator MRG31k3p, split as Theano splits them: the same numbers for a seed.

Each random variable begins ``2**134`` numbers after the one before it, and has a number of streams
that its size decides, ``2**72`` numbers apart (:mod:`symdnn.ops.random.mrg`).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from symdnn import tensor as T
from symdnn.compat.theano.names.class_names import NAMES
from symdnn.errors import OptionError, TypeMismatch
from symdnn.graph.dims import Dim
from symdnn.graph.type import TensorType
from symdnn.graph.typing import Array
from symdnn.graph.values.storage import Storage
from symdnn.graph.variable import Shared, Variable, as_variable
from symdnn.ops.core.shape import as_dim
from symdnn.ops.elementwise.arithmetic import cast
from symdnn.ops.random import random_stream
from symdnn.ops.random.mrg import M1, M2, jumped, mrg_uniform, spaced
from symdnn.ops.random.sizes import float_dtype, product_of, size_dims

__all__ = ["MrgStreams", "ff_2p134", "ff_2p72", "guess_n_streams"]

_MOST_STREAMS = 60 * 256
#: Base 2 logarithms of the numbers between random variables, and between their streams.
_BETWEEN_VARIABLES, _BETWEEN_STREAMS = 134, 72


def guess_n_streams(size: object, warn: bool = False) -> int:
    """The number of streams for a draw: a sixth of the elements, where ints say how many."""
    if isinstance(size, tuple | list) and all(isinstance(n, int) for n in size):
        count = math.prod(size)
        return min(count // 6 if count > 6 else count, _MOST_STREAMS)
    return _MOST_STREAMS


def ff_2p72(rstate: Any) -> Array:
    """The state ``2**72`` numbers later."""
    return jumped(np.asarray(rstate), _BETWEEN_STREAMS)


def ff_2p134(rstate: Any) -> Array:
    """The state ``2**134`` numbers later."""
    return jumped(np.asarray(rstate), _BETWEEN_VARIABLES)


def _state_of(seed: Any) -> Array:
    """A seed's state: one integer six times, or six integers."""
    if isinstance(seed, int | np.integer):
        if not 0 < seed < M2:
            raise OptionError(f"seed={seed}: wanted an integer of at least 1 and below {M2}")
        seed = [seed] * 6
    numbers = [int(s) for s in seed]
    if len(numbers) != 6:
        raise TypeMismatch("MRG_RandomStreams", "an integer or six of them as a seed", seed)
    for part, below in ((numbers[:3], M1), (numbers[3:], M2)):
        if not any(part) or not all(0 <= n < below for n in part):
            raise OptionError(f"seed={seed}: wanted three integers below {below}, not all 0")
    return np.array(numbers, np.int32)


class MrgStreams(random_stream.MRG_RandomStreams):
    """Random variables with Theano's numbers.

    Those are uniform and normal ones, truncated or not, ``binomial`` with ``n=1``, and
    ``multinomial`` for a matrix; other distributions have symdnn's numbers.
    """

    def __init__(self, seed: Any = 12345, use_cuda: Any = None) -> None:
        seed = 12345 if seed is None else seed
        super().__init__(seed)
        #: The number of streams of each random variable; None where the numbers are symdnn's.
        self._streams: list[int | None] = []
        self.default_instance_seed = seed
        self.set_rstate(seed)

    def set_rstate(self, seed: Any) -> None:
        """Let the random variables that are made from now on start from a seed."""
        self.rstate = _state_of(seed)

    def inc_rstate(self) -> None:
        """Skip the numbers of one random variable."""
        self.rstate = ff_2p134(self.rstate)

    def get_substream_rstates(
        self, n_streams: int, dtype: object = None, inc_rstate: bool = True
    ) -> Array:
        """The states of a random variable's streams."""
        found = spaced(self.rstate, n_streams, _BETWEEN_STREAMS)
        if inc_rstate:
            self.inc_rstate()
        return found

    def n_streams(self, size: object) -> int:
        """:func:`guess_n_streams`."""
        return guess_n_streams(size)

    def seed(self, seed: Any = None) -> None:
        """Restart all random variables from another seed (None: that of the constructor)."""
        self.set_rstate(self.default_instance_seed if seed is None else seed)
        super().seed(seed)

    def _initial(self, index: int) -> Array:
        streams = self._streams[index] if index < len(self._streams) else None
        return super()._initial(index) if streams is None else self.get_substream_rstates(streams)

    def register(self, state: Shared, new: Variable) -> None:
        """Let functions that read ``state`` write ``new`` back."""
        self._streams.append(state.type.shape[0] if state.type.dtype == "int32" else None)
        super().register(state, new)

    # -- distributions ------------------------------------------------------------------------

    def unit_uniform(self, dims: list[Dim], dtype: str, size: Any, nstreams: Any) -> Variable:
        """Uniform values of (0, 1)."""
        streams = guess_n_streams(size) if nstreams is None else int(nstreams)
        start = Storage(self.get_substream_rstates(streams))
        state = Shared(TensorType("int32", (streams, 6)), start, "random_state")
        return self.draw(lambda s: mrg_uniform(s, dims, dtype), state)

    def normal(
        self, size: Any = None, avg: Any = 0.0, std: Any = 1.0, ndim: int | None = None,
        dtype: Any = None, nstreams: Any = None, truncate: bool = False, target: object = None,
    ) -> Variable:  # fmt: skip
        """Normal values by Box and Muller 1958, from twice as many uniform ones: the first half
        are the radii, the second the angles; the cosines stand before the sines."""
        mean, deviation = as_variable(avg), as_variable(std)
        kind = float_dtype(dtype, mean, deviation)
        dims = size_dims(size, ndim, [mean, deviation])
        streams = _MOST_STREAMS if nstreams is None else nstreams
        n = product_of(dims)
        half = (n + 1) // 2
        u = self.uniform((2 * half,), dtype=kind, nstreams=streams)
        radius = T.sqrt(-2.0 * T.log(u[:half]))
        angle = np.array(2.0 * np.pi, kind) * u[half:]
        cosine, sine = T.cos(angle), T.sin(angle)
        if truncate:
            z = self._within_two(radius, cosine, sine, kind, streams)
        else:
            z = T.concatenate([radius * cosine, radius * sine])
        z = z[:n].reshape(dims, ndim=len(dims))
        return z * cast(deviation, kind) + cast(mean, kind)

    def _within_two(
        self, radius: Variable, cosine: Variable, sine: Variable, kind: str, streams: int
    ) -> Variable:
        """The values of (-2, 2), and others in place of the rest, which get new radii."""
        parts, rest = [], []
        for side in (cosine, sine):
            z = radius * side
            out = (z < -2.0) | (z > 2.0)
            parts.append(z[T.nonzero(~out)[0]])
            rest.append(side[T.nonzero(out)[0]])
        counts = [part.shape[0] for part in rest]
        u = self.uniform(
            (counts[0] + counts[1],), low=np.array(np.exp(-2.0), kind), dtype=kind, nstreams=streams
        )
        new = T.sqrt(-2.0 * T.log(u)) * T.concatenate(rest)
        return T.concatenate([parts[0], new[: counts[0]], parts[1], new[counts[0] :]])

    def binomial(
        self, size: Any = None, n: Any = 1, p: Any = 0.5, ndim: int | None = None,
        dtype: Any = "int64", nstreams: Any = None, target: object = None,
    ) -> Variable:  # fmt: skip
        """1 where a uniform value is less than ``p``."""
        if not isinstance(n, int) or n != 1:
            return super().binomial(size, n, p, ndim, dtype, nstreams, target)
        prob = as_variable(p)
        dims = size_dims(size, ndim, [prob])
        streams = guess_n_streams(size) if nstreams is None else nstreams
        return cast(self.uniform(dims, nstreams=streams) < prob, dtype)

    def multinomial(
        self, size: Any = None, n: Any = 1, pvals: Any = None, ndim: int | None = None,
        dtype: Any = "int64", nstreams: Any = None, target: object = None,
    ) -> Variable:  # fmt: skip
        """How often each class is drawn, of ``n`` times for each row of ``pvals``."""
        if size is not None or as_variable(pvals).type.ndim != 2:
            return super().multinomial(size, n, pvals, ndim, dtype, nstreams, target)
        p = as_variable(pvals)
        count = as_dim(n) * p.shape[0]
        streams = _MOST_STREAMS if nstreams is None else nstreams
        u = self.uniform((count,), nstreams=streams)
        made: Variable = NAMES["MultinomialFromUniform"](dtype)(p, u, n)
        return made
