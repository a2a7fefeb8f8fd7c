"""Shared variables that are meant for the GPU, under Theano's name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from symdnn.errors import InputError
from symdnn.graph.type import TensorType
from symdnn.graph.values.float64 import report_float64_shared
from symdnn.graph.values.interop import is_on_device
from symdnn.graph.values.storage import Storage
from symdnn.graph.variable import Shared, Variable

__all__ = ["gpuarray_shared_constructor"]


def gpuarray_shared_constructor(
    value: Any,
    name: str | None = None,
    strict: bool = False,
    allow_downcast: bool | None = None,
    borrow: bool = False,
    broadcastable: Sequence[bool] | None = None,
    target: str | None = None,
) -> Shared:
    """A shared variable from an array of floats (Theano's constructor of that name).

    Every shared variable moves to the device of the function that uses it and stays there. So this
    is ``symdnn.shared`` for arrays, and programs that call it run on a CPU too. An array on a GPU
    (PyCUDA's ``GPUArray``, or one with ``__cuda_array_interface__`` or ``__dlpack__``) stays there,
    without a copy if ``borrow`` is true. ``strict``, ``allow_downcast`` and ``target`` are accepted
    for compatibility with Theano.

    Raises :class:`~symdnn.errors.InputError`, a ``TypeError``, for a value that is not an array.

    >>> gpuarray_shared_constructor(np.zeros((2, 3), "float32"), name="w").dtype
    'float32'
    """
    if is_on_device(value):
        return Shared.on_device(value, name, broadcastable, borrow)
    if isinstance(value, Variable) or not isinstance(value, np.ndarray):
        raise InputError(f"gpuarray_shared_constructor: wanted an array, got {value!r:.80}")
    type_ = TensorType(value.dtype, broadcastable or (None,) * value.ndim)
    type_.check_value_shape(value.shape, f"shared {name or ''}".strip())
    made = Shared(type_, Storage(value, borrow=borrow), name)
    report_float64_shared(made)
    return made
