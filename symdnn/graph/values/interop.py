"""Arrays of other libraries on a device as values of shared variables.

This layer knows no targets: the layer that loads them calls :func:`install`.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from symdnn.errors import InputError
from symdnn.graph.type import TensorType
from symdnn.graph.values.dlpack import CUDA, CUDA_MANAGED
from symdnn.graph.values.storage import DeviceMemory, Placed
from symdnn.graph.values.value import check_shape

_ON_CARDS = (CUDA, CUDA_MANAGED)


def is_on_device(value: object) -> bool:
    """Whether the memory of a value is on a GPU, by its array interfaces."""
    if isinstance(value, np.ndarray | np.generic | float | int | list | tuple):
        return False
    if hasattr(value, "owner") and hasattr(value, "type"):  # a shared variable is no value
        return False
    return has_device_memory(value)


def has_device_memory(value: object) -> bool:
    """The same of any object, also of a shared variable."""
    if getattr(value, "__cuda_array_interface__", None) is not None:
        return True
    device = getattr(value, "__dlpack_device__", None)
    try:
        return device is not None and int(device()[0]) in _ON_CARDS
    except Exception:  # another library's code; making an array of the value raises a better error
        return False


class Targets(Protocol):
    """The interface of the layer that loads targets."""

    def place(self, value: object, what: str) -> Placed:
        """An array on a device as a value, with the device's memory.

        Raises :class:`~symdnn.errors.InputError`, which names ``what``, for memory that functions
        can't use.
        """

    def home(self, type_: object) -> DeviceMemory | None:
        """The memory in which functions keep a shared variable of this type; None for the host."""


_targets: list[Targets] = []


def install(targets: Targets) -> None:
    """Set the layer that knows the targets; called once."""
    assert not _targets
    _targets.append(targets)


def place(value: object, what: str) -> Placed:
    """See :meth:`Targets.place`."""
    return _targets[0].place(value, what)


def home(type_: object) -> DeviceMemory | None:
    """See :meth:`Targets.home`."""
    return _targets[0].home(type_) if _targets else None


def place_as(value: object, type_: TensorType, what: str) -> Placed:
    """:func:`place` for a variable of ``type_``.

    Raises :class:`~symdnn.errors.InputError` for another dtype and
    :class:`~symdnn.errors.DimensionMismatch` for another shape.
    """
    placed = place(value, what)
    check_as(placed, type_, what)
    return placed


def check_as(array: Any, type_: TensorType, what: str) -> None:
    """Raise unless an array on a device has the dtype and shape of ``type_``."""
    if array.dtype != type_.dtype:
        raise InputError(
            f"{what}: wanted {type_}, got {array.dtype}{array.shape} on a GPU, where "
            "nothing is converted"
        )
    check_shape(array, type_, what)
