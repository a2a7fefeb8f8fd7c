"""Makes shared variables from values."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from symdnn.compile.execute.targets import Devices, resolve_target
from symdnn.errors import InputError
from symdnn.graph.names.dim import SizeOrName
from symdnn.graph.names.torch_words import advises
from symdnn.graph.operators import operator
from symdnn.graph.type import TensorType
from symdnn.graph.typing import DtypeLike
from symdnn.graph.values import interop
from symdnn.graph.values.float64 import report_float64_shared
from symdnn.graph.values.storage import DeviceMemory, Placed, Storage
from symdnn.graph.values.value import array_from
from symdnn.graph.variable import Shared, Variable

__all__ = ["shared"]


@advises(requires_grad="symdnn.grad(cost, x) takes the variables to differentiate by")
def shared(
    value: object,
    name: str | None = None,
    strict: bool = False,
    allow_downcast: bool | None = None,
    *,
    borrow: bool = False,
    shape: Sequence[SizeOrName] | None = None,
    broadcastable: Sequence[bool] | None = None,
    dtype: DtypeLike | None = None,
) -> Shared:
    """A variable with a value that functions read and update.

    ``value`` is an array (its dtype is kept), a number or a list (a Python float becomes
    float64 as in NumPy, an int int64). All dimensions are unknown to the compiler, so the value
    may change shape later; ``shape`` or ``broadcastable`` fix some of them, or give them names
    (``shape=("batch", 784)``, see :class:`symdnn.Dim`). ``borrow`` takes a
    NumPy array as it is, without a copy. An array on a GPU (see ``set_value``) stays there. Of a
    sparse array of SciPy's it is a :class:`symdnn.sparse.SharedSparse`.

    ``strict`` refuses values that are no arrays.

    Raises :class:`~symdnn.errors.InputError` for values that are no arrays of numbers.
    """
    if name is not None and not isinstance(name, str):
        raise InputError(f"shared: wanted a string as its name, got {type(name).__name__}")
    if isinstance(value, Variable):
        raise InputError(f"shared: wanted a value, got the symbolic variable {value}")
    if strict and not (isinstance(value, np.ndarray | np.generic) or interop.is_on_device(value)):
        raise InputError(f"shared: strict, wanted an array, got a {type(value).__name__}")
    if hasattr(value, "tocsr") and hasattr(value, "nnz"):  # of scipy.sparse
        sparse: Any = operator("sparse_shared")(value, name)
        return sparse  # type: ignore[no-any-return]
    named = TensorType(dtype) if dtype else None
    if interop.is_on_device(value):
        static = shape if shape is not None else broadcastable
        made = Shared.on_device(value, name, static, borrow, named.dtype if named else None)
        report_float64_shared(made)
        return made
    wanted = named.numpy if named else None
    given = array_from(value, f"shared {name or ''}".strip())
    try:
        array = np.asarray(given, dtype=wanted)
        static = shape if shape is not None else (broadcastable or (None,) * array.ndim)
        type_ = TensorType(array.dtype, static)
    except InputError:
        raise  # about a name
    except (TypeError, ValueError) as error:
        raise InputError(f"shared: wanted an array of numbers, got {value!r:.80}") from error
    type_.check_value_shape(array.shape, f"shared {name or ''}".strip())
    made = Shared(type_, Storage(array, borrow=borrow and array is value), name)
    report_float64_shared(made)
    return made


class _Targets:
    """See :class:`symdnn.graph.values.interop.Targets`."""

    def place(self, value: object, what: str) -> Placed:
        module = importlib.import_module("symdnn.gpu.execution.placed_arrays")
        made: Placed = module.place(value, what)
        return made

    def home(self, type_: Any) -> DeviceMemory | None:
        target = resolve_target()
        if target.kind == "cpu" or not target.keeps(type_):
            return None
        found: DeviceMemory = Devices(target).main.memory
        return found


interop.install(_Targets())
