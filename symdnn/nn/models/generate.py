"""Texts from language models: sampling, and a step with a cache that stays on the device."""

from __future__ import annotations

from typing import Any

import numpy as np

from symdnn.compile.function import function
from symdnn.compile.shared import shared
from symdnn.errors import InputError
from symdnn.graph.type import TensorType
from symdnn.graph.typing import Array
from symdnn.graph.variable import Shared, Variable, as_variable
from symdnn.nn.modules.module import Module
from symdnn.nn.transformers.cache import KeyValueCache
from symdnn.ops.array.argreduce import argmax
from symdnn.ops.array.cumulative import cumsum
from symdnn.ops.array.sort import sort, topk
from symdnn.ops.elementwise.arithmetic import cast
from symdnn.ops.elementwise.comparison import eq, switch
from symdnn.ops.elementwise.math import log
from symdnn.ops.nn.softmax import softmax
from symdnn.ops.random.random_stream import RandomStream

__all__ = ["Generator", "sample"]


def sample(
    scores: Variable,
    stream: RandomStream,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
) -> Variable:
    """Indices (batch,) drawn by scores (batch, words), int64.

    Scores are divided by ``temperature`` first; with 0 the index is that of the largest score.
    ``top_k`` leaves the so many largest; ``top_p`` the fewest whose probabilities reach it
    (Holtzman et al. 2020), each with all that equal the last one. A draw is the largest of the
    scores plus Gumbel noise, so it needs no value on the host.

    Raises :class:`~symdnn.errors.InputError` for settings out of range.
    """
    _check(temperature, top_k, top_p)
    if temperature == 0:
        return cast(argmax(scores, axis=-1), "int64")
    low = np.asarray(-np.inf, scores.type.numpy)
    found = scores / np.asarray(temperature, scores.type.numpy)
    if top_k is not None:
        least = topk(found, top_k, axis=-1).min(axis=-1, keepdims=True)
        found = switch(found >= least, found, low)
    if top_p is not None:
        p = softmax(found, axis=1)
        falling = -sort(-p, axis=-1)
        before = cumsum(falling, axis=-1) - falling
        kept = switch(
            before < np.asarray(top_p, p.type.numpy), falling, np.asarray(2, p.type.numpy)
        )
        found = switch(p >= kept.min(axis=-1, keepdims=True), found, low)
    u = stream.uniform(found.shape, dtype=found.type.dtype, low=1e-7)
    return cast(argmax(found - log(-log(u)), axis=-1), "int64")


def _check(temperature: float, top_k: int | None, top_p: float | None) -> None:
    if temperature < 0 or (top_k is not None and top_k < 1) or not 0 < (top_p or 1) <= 1:
        raise InputError(
            f"sample: temperature={temperature}, top_k={top_k}, top_p={top_p}; wanted at least 0, "
            "at least 1, and above 0 up to 1"
        )


class Generator:
    """Continues texts with a language model: ``generate(tokens, count)``.

    ``net(tokens, cache=cache)`` gives scores (batch, time, words), as
    :func:`~symdnn.nn.models.gpt2` and :func:`~symdnn.nn.models.llama` do; it is put into
    evaluation. There are two compiled functions, for a prompt and for one token; texts, keys and
    values stay on the device. Settings are those of :func:`sample`.

    >>> from symdnn import nn
    >>> net = nn.models.gpt2(words=20, context=16, width=8, layers=1, heads=2)
    >>> nn.models.Generator(net, 1, 16, temperature=0)(np.array([[3, 1]]), 4).shape
    (1, 6)
    """

    def __init__(
        self, net: Module, batch: int, max_length: int, temperature: float = 1.0,
        top_k: int | None = None, top_p: float | None = None, seed: int | None = None,
    ) -> None:  # fmt: skip
        self.net, self.cache = net.evaluate(), KeyValueCache(batch, max_length)
        self._stream, self._temperature = RandomStream(seed), temperature
        self._top_k, self._top_p = top_k, top_p
        self._text: Shared = shared(
            np.zeros((batch, max_length), "int64"), shape=(batch, max_length)
        )
        self._last: Shared = shared(np.zeros((batch, 1), "int64"), shape=(batch, 1))
        prompt = TensorType("int64", (batch, None))("prompt")
        self._begin = function([prompt], [], updates=self._step(prompt))
        self._next = function([], [], updates=self._step(self._last))

    def _step(self, tokens: Variable) -> list[tuple[Shared, Variable]]:
        """The updates of a call with these new tokens: cache, text and last token."""
        scores = self.net(tokens, cache=self.cache)[:, -1]
        drawn = sample(scores, self._stream, self._temperature, self._top_k, self._top_p)
        drawn = drawn.dimshuffle(0, "x")
        held = self.cache.updates(scores)
        at = dict(held)[self.cache.counter]
        here = eq(as_variable(np.arange(self.cache.max_length)), at).dimshuffle("x", 0)
        return [*held, (self._text, switch(here, drawn, self._text)), (self._last, drawn)]

    def __call__(self, tokens: Any, count: int) -> Array:
        """The texts ``tokens`` (batch, time) with ``count`` more tokens, int64.

        Raises :class:`~symdnn.errors.InputError` for texts that would be longer than
        ``max_length``, or have another batch.
        """
        given = np.asarray(tokens, "int64")
        batch, most = self._text.type.shape
        length = given.shape[-1] + count
        if given.ndim != 2 or given.shape[0] != batch or not given.size or count < 1:
            raise InputError(f"Generator: wanted tokens ({batch}, time), got {given.shape}")
        if length > int(most or 0):
            raise InputError(f"Generator: {length} tokens; at most {most} have room")
        self.cache.reset()
        text = np.zeros((given.shape[0], int(most or 0)), "int64")
        text[:, : given.shape[1]] = given
        self._text.set_value(text)
        self._begin(given)
        for _ in range(count - 1):
            self._next()
        return np.asarray(self._text.get_value())[:, :length]
