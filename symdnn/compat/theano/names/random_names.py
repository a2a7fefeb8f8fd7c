"""Names of Theano's modules of random variables."""

from __future__ import annotations

from typing import Any

import numpy as np

from symdnn.graph.variable import Shared, Variable
from symdnn.ops.random import random_stream
from symdnn.ops.random.random_stream import RandomStream

__all__ = [
    "CURAND_RandomStreams", "GPUA_MRG_RandomStreams", "MRG_RandomStream", "MRG_RandomStreams",
    "RandomStateSharedVariable", "RandomStreams", "RandomStreamsBase", "binomial",
    "guess_n_streams", "multinomial", "normal", "permutation", "poisson", "random_integers",
    "random_state_type", "uniform",
]  # fmt: skip


class _TheanosWords(RandomStream):
    """Arguments that Theano's streams take under old names."""

    def binomial(self, size: Any = None, n: Any = 1, p: Any = 0.5, *args: Any, **words: Any) -> Any:
        """As :meth:`RandomStream.binomial`; ``prob`` is the old name of ``p``."""
        return super().binomial(size, n, words.pop("prob", p), *args, **words)

    def __getitem__(self, item: Variable) -> Any:
        """The state of a random variable, as an array: what ``rng[variable].set_state`` changes."""
        return _Generator(item.tag.rng)

    def __setitem__(self, item: Variable, value: Any) -> None:
        item.tag.rng.set_value(value.get_state() if isinstance(value, _Generator) else value)


class _Generator:
    """The state of one random variable."""

    def __init__(self, state: Shared) -> None:
        self._state = state

    def get_state(self) -> Any:
        """The state's numbers."""
        return self._state.get_value()

    def set_state(self, state: Any) -> None:
        """Set the state."""
        self._state.set_value(state)

    def seed(self, seed: int) -> None:
        """Start from another seed."""
        from symdnn.ops.random.rng_philox import fold_seed, stream_key

        self._state.set_value(np.array([stream_key(fold_seed([int(seed)]), 0), 0], np.uint64))


class RandomStreams(_TheanosWords, random_stream.RandomStreams):
    """``theano.tensor.shared_randomstreams.RandomStreams``; the numbers are symdnn's own."""


class MRG_RandomStreams(_TheanosWords, random_stream.MRG_RandomStreams):
    """``theano.sandbox.rng_mrg.MRG_RandomStreams``; the numbers are symdnn's own."""

    def __init__(self, seed: Any = 12345, use_cuda: Any = None) -> None:
        super().__init__(seed)

    @property
    def rstate(self) -> Any:
        """The state of the streams, as an array: what :meth:`set_rstate` takes."""
        return np.array([self._seed & (2**63 - 1), len(self.state_updates)], np.int64)

    def set_rstate(self, seed: Any) -> None:
        """Restart all streams from another seed."""
        self.seed([abs(int(s)) for s in np.atleast_1d(seed)] if not np.isscalar(seed) else seed)

    def inc_rstate(self) -> None:
        """Nothing: each stream has its own counter."""


MRG_RandomStream = MRG_RandomStreams  # Theano-PyMC's name


RandomStreamsBase = RandomStream
GPUA_MRG_RandomStreams = CURAND_RandomStreams = MRG_RandomStreams
RandomStateSharedVariable = Shared
random_state_type = None


def guess_n_streams(size: Any, warn: bool = False) -> int:
    """Theano's number of streams for a draw; symdnn's need none."""
    return 60 * 256


def _draw(method: str) -> Any:
    """A function of ``theano.tensor.raw_random``: ``(new state, values)`` from a state."""

    def draw(random_state: Any, *args: Any, **words: Any) -> Any:
        if not isinstance(random_state, Shared):
            raise TypeError(
                f"raw_random.{method}: wanted the state of a RandomStreams of symdnn "
                "(stream.new_state()); NumPy's RandomState can't be one. Use RandomStreams"
            )
        stream = RandomStreams(0)
        stream.new_state = lambda: random_state  # type: ignore[method-assign]
        before = random_state.default_update
        values = getattr(stream, method)(*args, **words)
        new = values.tag.update[1] if hasattr(values.tag, "update") else random_state.default_update
        random_state.default_update = before
        return new, values

    draw.__name__, draw.__doc__ = method, f"``({method}'s next state, values)`` from a state."
    return draw


uniform, normal, binomial = _draw("uniform"), _draw("normal"), _draw("binomial")
random_integers, permutation = _draw("random_integers"), _draw("permutation")
multinomial, poisson = _draw("multinomial"), _draw("poisson")
