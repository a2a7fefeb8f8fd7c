"""Where a network stores each weight: names of shared variables or parts of them, and how to set
them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from symdnn.errors import InputError
from symdnn.graph.variable import Shared
from symdnn.nn.modules.module import Module

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Slot:
    """A shared variable, or its part of shape ``shape`` that begins at ``start``."""

    variable: Shared
    shape: tuple[int, ...]
    start: int = 0

    def start_value(self) -> Array:
        """An array for the new value, with the old numbers if the slot is a part of a variable."""
        old = self.variable.get_value(borrow=True)
        return np.empty(old.shape, old.dtype) if old.shape == self.shape else np.array(old)

    def part(self, value: Array) -> Array:
        """The part of the variable's value, as a view."""
        size = int(np.prod(self.shape, dtype=np.int64))
        return value.reshape(-1)[self.start : self.start + size].reshape(self.shape)


@dataclass(frozen=True)
class Loaded:
    """The result of loading weights: what happened to every name.

    ``loaded``: names of the source that were taken. ``unmatched``: names of the source that the
    network has no place for. ``missing``: names of the network that the source lacks. ``ignored``:
    names that are left out on purpose.
    """

    loaded: tuple[str, ...]
    unmatched: tuple[str, ...]
    missing: tuple[str, ...]
    ignored: tuple[str, ...] = ()

    def __str__(self) -> str:
        lines = [f"{len(self.loaded)} loaded"]
        for what in ("unmatched", "missing", "ignored"):
            names = getattr(self, what)
            lines += [f"{len(names)} {what}: {', '.join(names)}"] if names else []
        return "\n".join(lines)


def own_names(net: Module) -> Iterator[tuple[str, Module, str, Shared]]:
    """(prefix with its dot, module, name, variable) of all weights; a tied one at each place."""
    for prefix, module in net.named_modules():
        for name, variable in module.own_variables():
            yield (f"{prefix}." if prefix else ""), module, name, variable


def flip_of(who: str, name: str, said: bool | None, given: bool | None) -> bool:
    """Whether a filter is one of a true convolution: as the file says, or the argument.

    Raises :class:`~symdnn.errors.InputError` where neither says so, and where they differ.
    """
    if said is not None and given is not None and said != given:
        raise InputError(
            f"{who}: the file says filter_flip={said} of {name}, the argument filter_flip={given}; "
            "leave the argument out, or give what the file says. Nothing was changed"
        )
    if said is None and given is None:
        raise InputError(
            f"{who}: nothing says of which convention the filter {name} is, and it is not guessed. "
            "Give filter_flip=True for filters of true convolutions (Theano's conv2d, Lasagne, "
            "Keras on Theano), False for those of cross-correlations (cuDNN's layers, TensorFlow, "
            "JAX, PyTorch). Nothing was changed"
        )
    return bool(given if said is None else said)


def refuse_flipped(who: str, said: Mapping[str, bool]) -> None:
    """Raise :class:`~symdnn.errors.InputError` where a file says that a filter is one of a true
    convolution, which the program whose weights are loaded does not compute."""
    if flipped := [n for n, flip in said.items() if flip]:
        raise InputError(
            f"{who}: the file says filter_flip=True of {', '.join(flipped):.200}, and here filters "
            "are those of cross-correlations. Give it symdnn.io.load_parameters(path, "
            "filter_flip=False), which mirrors them. Nothing was changed"
        )


def set_slots(
    who: str, slots: Mapping[str, Slot], given: Mapping[str, Any], problems: Iterable[str] = ()
) -> None:
    """Write ``given``, arrays by name, to ``slots``: all, or none if one does not fit.

    Parts of a variable that are not given keep their values. Raises
    :class:`~symdnn.errors.InputError` with ``problems`` and all others that were found.
    """
    messages = list(problems)
    values: dict[Shared, Array] = {}
    written: dict[tuple[Shared, int], str] = {}
    for name, value in given.items():
        slot, array = slots[name], np.asarray(value)
        first = written.setdefault((slot.variable, slot.start), name)
        if array.shape != slot.shape:
            messages.append(f"{name} has shape {array.shape}, wanted {slot.shape}")
        elif first != name and not np.array_equal(array, np.asarray(given[first])):
            messages.append(f"{name} and {first} are one variable here, but their values differ")
        else:
            if slot.variable not in values:
                values[slot.variable] = slot.start_value()
            slot.part(values[slot.variable])[...] = array
    if messages:
        raise InputError(f"{who}: {'; '.join(messages)}. Nothing was changed")
    for variable, value in values.items():
        variable.set_value(value, borrow=True)
