"""Names of Theano's modules of random variables."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from symdnn.compat.theano.names.class_names import NAMES
from symdnn.compat.theano.names.streams.mrg import MrgStreams, ff_2p72, ff_2p134, guess_n_streams
from symdnn.graph.variable import Shared, Variable
from symdnn.ops.random import random_stream
from symdnn.ops.random.random import STATE_TYPE
from symdnn.ops.random.random_stream import RandomStream
from symdnn.ops.random.rng_philox import fold_seed, stream_key

__all__ = [
    "CURAND_RandomStreams", "GPUA_MRG_RandomStreams", "MRG_RandomStream", "MRG_RandomStreams",
    "MultinomialFromUniform",
    "RandomStateSharedVariable", "RandomStateType", "RandomStreams", "RandomStreamsBase",
    "binomial", "ff_2p134", "ff_2p72", "guess_n_streams", "multinomial", "normal", "permutation",
    "poisson", "random_integers", "random_state_type", "uniform",
]  # fmt: skip


MultinomialFromUniform = NAMES["MultinomialFromUniform"]


class _Generator:
    """The state of one random variable, with the methods of NumPy's ``RandomState`` that programs
    call; ``write`` keeps a new state."""

    def __init__(self, state: Any, write: Callable[[Any], None] | None = None) -> None:
        self._state, self._write = state, write

    def get_state(self) -> Any:
        """The state's numbers."""
        return self._state.copy()

    def set_state(self, state: object) -> None:
        """Set the state."""
        self._state = np.array(state)
        if self._write is not None:
            self._write(self._state)

    def seed(self, seed: int) -> None:
        """Start from another seed."""
        self.set_state(np.array([stream_key(fold_seed([int(seed)]), 0), 0], np.uint64))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return np.array(self._state, dtype)


class RandomStateSharedVariable(Shared):
    """The state of a random variable, whose value programs take for a ``RandomState``."""

    def get_value(self, borrow: bool = False, return_internal_type: bool = False) -> Any:
        """An object with ``get_state``, ``set_state`` and ``seed``; with ``borrow`` these change
        the variable."""
        found = np.array(super().get_value())
        return _Generator(found, super().set_value if borrow else None)

    def set_value(self, new_value: object, borrow: bool = False) -> None:
        """Set the state, to what :meth:`get_value` gave."""
        super().set_value(np.asarray(new_value), borrow)


class _TheanosWords(RandomStream):
    """Arguments that Theano's streams take under old names, and ``rng`` and ``update`` of what they
    return: the state, and the pair of it and its next value."""

    def __getitem__(self, item: Any) -> Any:
        """The state of a random variable: what ``rng[variable].set_state`` changes."""
        state = item.tag.rng
        return _Generator(np.asarray(state.get_value()), state.set_value)

    def __setitem__(self, item: Any, value: Any) -> None:
        item.tag.rng.set_value(np.asarray(value))


def _sampler(name: str) -> Any:
    """The method ``name`` of a stream, whose result has ``rng`` and ``update``."""
    method = getattr(RandomStream, name)

    @functools.wraps(method)
    def sample(self: _TheanosWords, *args: object, **words: object) -> Any:
        if "prob" in words:  # the old name of p
            words["p"] = words.pop("prob")
        made = len(self.state_updates)
        values = getattr(super(_TheanosWords, self), name)(*args, **words)
        if len(self.state_updates) > made:
            state, new = self.state_updates[made]
            values.rng = values.rstate = values.tag.rng = state
            values.update = values.tag.update = state, new
        return values

    return sample


for _name in (
    "uniform", "normal", "truncated_normal", "binomial", "poisson", "random_integers",
    "permutation", "multinomial", "choice", "shuffle_row_elements", "exponential", "laplace",
    "cauchy", "logistic", "gumbel", "gamma", "chisquare", "standard_t", "beta", "dirichlet",
    "von_mises", "geometric", "negative_binomial", "categorical", "multivariate_normal",
):  # fmt: skip
    setattr(_TheanosWords, _name, _sampler(_name))


class RandomStreams(_TheanosWords, random_stream.RandomStreams):
    """``theano.tensor.shared_randomstreams.RandomStreams``; the numbers are symdnn's own."""

    def new_state(self) -> Shared:
        """The state of the next random variable."""
        state = super().new_state()
        return RandomStateSharedVariable(state.type, state.storage, state.name)


class MRG_RandomStreams(_TheanosWords, MrgStreams):
    """``theano.sandbox.rng_mrg.MRG_RandomStreams``, with Theano's numbers."""


MRG_RandomStream = MRG_RandomStreams  # Theano-PyMC's name


RandomStreamsBase = RandomStream
GPUA_MRG_RandomStreams = CURAND_RandomStreams = MRG_RandomStreams


class RandomStateType:
    """The type of states of random numbers. Called, it makes an input, whose value may be one of
    NumPy's ``RandomState`` (``In(state, value=..., update=new)``)."""

    def __call__(self, name: str | None = None) -> Variable:
        """An input."""
        return Variable(STATE_TYPE, name)


random_state_type = RandomStateType()


def state_of(generator: np.random.RandomState) -> Any:
    """The state with which one of NumPy's generators lets a function start."""
    seed = [int(n) for n in copy.deepcopy(generator).randint(0, 2**31, 4)]
    return np.array([stream_key(fold_seed(seed), 0), 0], np.uint64)


def _draw(method: str) -> Any:
    """A function of ``theano.tensor.raw_random``: ``(new state, values)`` from a state."""

    def draw(random_state: object, *args: object, **words: object) -> Any:
        if not isinstance(random_state, Variable) or random_state.type != STATE_TYPE:
            raise TypeError(
                f"raw_random.{method}: wanted a state, raw_random.random_state_type() or that of a "
                "stream of symdnn (stream.new_state()); NumPy's RandomState can be the value of an "
                "input, In(state, value=...)"
            )
        states: list[Any] = [random_state]  # a method that draws twice goes on with the next one
        stream: Any = RandomStreams(0)
        stream.new_state = lambda: states[-1]
        stream.register = lambda state, new: states.append(new)
        values = getattr(random_stream.RandomStream, method)(stream, *args, **words)
        return states[-1], values

    draw.__name__, draw.__doc__ = method, f"``({method}'s next state, values)`` from a state."
    return draw


uniform, normal, binomial = _draw("uniform"), _draw("normal"), _draw("binomial")
random_integers, permutation = _draw("random_integers"), _draw("permutation")
multinomial, poisson = _draw("multinomial"), _draw("poisson")
