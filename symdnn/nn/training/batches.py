"""Batches of arrays, in an order that depends on a seed and the epoch alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from symdnn.errors import DimensionMismatch, InputError
from symdnn.graph.typing import Array
from symdnn.nn import init
from symdnn.nn.modules.checked import checked
from symdnn.options import is_int

#: A function of a batch and a generator that returns the batch to use (augmentation).
Transform = Callable[[Any, np.random.Generator], Any]

_ORDER, _TRANSFORM = 0, 1


class Batches:
    """The batches of some arrays; see :func:`batches`. Each ``iter()`` is the next epoch."""

    def __init__(
        self, arrays: object, size: int, shuffle: bool = False, seed: int | None = None,
        drop_last: bool = False, transform: Transform | None = None,
    ) -> None:  # fmt: skip
        self._keys, self._arrays = _named(arrays)
        self._single = not isinstance(arrays, Mapping | list | tuple)
        if not is_int(size) or size < 1:
            raise InputError(f"batches: size={size!r}; wanted an int, 1 or more")
        self.samples, self.size = _length(self._keys, self._arrays), int(size)
        self.shuffle, self.drop_last, self.transform = shuffle, drop_last, transform
        if seed is not None and seed < 0:
            raise InputError(f"batches: seed={seed!r}; wanted an int, 0 or more")
        #: All randomness follows from it.
        self.seed = int(init.generator().integers(2**63) if seed is None else seed)
        if len(self) == 0:
            raise InputError(
                f"batches: {self.samples} samples make no batch of {size}; "
                "have smaller ones, or drop_last=False"
            )
        self._next = self._reached = 0, 0

    def __len__(self) -> int:
        """Batches in an epoch."""
        whole, rest = divmod(self.samples, self.size)
        return whole + (rest > 0 and not self.drop_last)

    def at(self, epoch: int, start: int = 0) -> Iterator[Any]:
        """The batches of an epoch from number ``start`` on; the same at each call."""
        order = self._random(_ORDER, epoch).permutation(self.samples) if self.shuffle else None
        for i in range(start, len(self)):
            chosen: Any = slice(i * self.size, (i + 1) * self.size)
            if order is not None:
                chosen = order[chosen]
            batch = self._shaped([a[chosen] for a in self._arrays])
            if self.transform is not None:
                batch = self.transform(batch, self._random(_TRANSFORM, epoch, i))
            yield batch

    def __iter__(self) -> Iterator[Any]:
        epoch, start = self._next
        self._next = epoch + 1, 0
        for i, batch in enumerate(self.at(epoch, start), start + 1):
            self._reached = (epoch, i) if i < len(self) else (epoch + 1, 0)
            yield batch

    def state_dict(self) -> dict[str, int]:
        """Seed, epoch, and how many of its batches were handed out."""
        epoch, batch = self._reached
        return {"seed": self.seed, "epoch": epoch, "batch": batch}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Let the next ``iter()`` go on from there."""
        self.seed = int(state["seed"])
        self._next = self._reached = int(state["epoch"]), int(state["batch"])

    def _random(self, *key: int) -> np.random.Generator:
        return np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=key))

    def _shaped(self, values: list[Array]) -> Any:
        if self._single:
            return values[0]
        if self._keys and isinstance(self._keys[0], str):
            return dict(zip(self._keys, values, strict=True))
        return tuple(values)


@checked
def batches(
    arrays: object, size: int, shuffle: bool = False, seed: int | None = None,
    drop_last: bool = False, transform: Transform | None = None,
) -> Batches:  # fmt: skip
    """Batches of ``size`` of an array, a list of arrays or a dict of arrays of equal length.

    A batch is an array, a tuple or a dict likewise; the last one may be smaller, unless
    ``drop_last``. ``shuffle`` draws another order in each epoch. ``transform(batch, rng)`` changes
    a batch, with random numbers of its own (augmentation). Orders and numbers follow from ``seed``
    (None: drawn from ``nn.init``'s generator), the epoch and the batch's number alone: so a
    training can go on in the middle of an epoch. Without shuffling batches are views. ::

        for x, t in nn.batches((images, labels), 64, shuffle=True, seed=1):
            train(x, t)

    >>> [b.tolist() for b in batches(np.arange(5), 2)]
    [[0, 1], [2, 3], [4]]
    """
    return Batches(arrays, size, shuffle, seed, drop_last, transform)


def _named(arrays: object) -> tuple[Sequence[Any], list[Any]]:
    if isinstance(arrays, Mapping):
        return list(arrays), list(arrays.values())
    found = list(arrays) if isinstance(arrays, list | tuple) else [arrays]
    return range(len(found)), found


def _length(keys: Sequence[Any], arrays: Sequence[Any]) -> int:
    lengths = {}
    for key, a in zip(keys, arrays, strict=True):
        if not hasattr(a, "shape") or not np.shape(a):
            raise InputError(f"batches: {key} is no array of samples but {a!r:.60}")
        lengths[key] = int(a.shape[0])
    if not lengths:
        raise InputError("batches: wanted arrays, got none")
    if len(set(lengths.values())) > 1:
        text = ", ".join(f"{key} has {n}" for key, n in lengths.items())
        raise DimensionMismatch(f"batches: arrays of equal length are wanted; {text}")
    return next(iter(lengths.values()))
