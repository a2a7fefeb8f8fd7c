"""Values of a graph while it is built: tensors, sequences of them, optional ones."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from symdnn.graph.evaluate import evaluate
from symdnn.graph.traverse import leaves
from symdnn.graph.typing import Array
from symdnn.graph.variable import Constant, Shared, Variable, constant
from symdnn.onnx.model.kinds import carried, carrier, is_narrow
from symdnn.tensor import stack


class Unsettled(Exception):
    """A node needs a value while the graph is built, which only a call has.

    ``sizes``: that of a free size; ``names``: those of these inputs of the graph.
    """

    def __init__(self, what: str, names: Iterable[str] = (), sizes: bool = False) -> None:
        super().__init__(what)
        self.names, self.sizes = frozenset(names), sizes


class Value:
    """A tensor: its kind, and a variable, an array, or an array of numbers and symbolic sizes.

    ``data`` is an array if the elements are known. Its dtype is ``object`` if some are sizes that
    only a call has: such arrays are what ``Shape``, ``Gather``, ``Concat`` and arithmetic make of
    shapes, and their entries are ints and integer scalars.
    """

    __slots__ = ("_variable", "bits", "data", "kind", "real")

    def __init__(
        self, variable: Variable | None = None, kind: str | None = None, data: Array | None = None
    ) -> None:
        self._variable, self.data = variable, data
        #: Of a quantised value: the real one that it stands for, which has a gradient.
        self.real: Variable | None = None
        #: Of float8 that a graph made: its bits.
        self.bits: Variable | None = None
        if kind is None:
            kind = variable.type.dtype if variable is not None else str(data.dtype)  # type: ignore[union-attr]
        self.kind = kind

    @classmethod
    def of(cls, array: Any, kind: str | None = None) -> Value:
        """A constant; its kind is that of the array's dtype."""
        given = np.asarray(array)
        kind = kind or given.dtype.name
        return cls(None, kind, carried(given, kind))

    @property
    def variable(self) -> Variable:
        """The value as a variable, of the dtype that carries its kind."""
        if self._variable is None:
            assert self.data is not None, "a value has a variable or data"
            if self.data.dtype != object:
                self._variable = constant(self.data, dtype=carrier(self.kind))
            else:
                self._variable = _stacked(self.data, carrier(self.kind))
        return self._variable

    @property
    def is_narrow(self) -> bool:
        """Whether it is of a storage type that a wider dtype carries."""
        return is_narrow(self.kind)

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return self.data.ndim if self.data is not None else self.variable.ndim

    @property
    def shape(self) -> tuple[int | None, ...]:
        """Static sizes, None where they are unknown."""
        return self.data.shape if self.data is not None else self.variable.type.shape

    @property
    def array(self) -> Array | None:
        """The elements, if all are known."""
        return None if self.data is None or self.data.dtype == object else self.data

    @property
    def has_sizes(self) -> bool:
        """Whether some elements are symbolic sizes."""
        return self.data is not None and self.data.dtype == object

    def __repr__(self) -> str:
        return f"Value({self.kind}{self.shape})"


def _stacked(entries: Array, dtype: str) -> Variable:
    """Numbers and integer scalars as one tensor."""
    flat = [
        e.astype(dtype) if isinstance(e, Variable) else constant(e, dtype=dtype)
        for e in entries.ravel()
    ]
    if entries.ndim == 0:
        return flat[0]
    vector = stack(flat)
    return vector if entries.ndim == 1 else vector.reshape(entries.shape)


class Sequence(list[Any]):
    """A sequence of tensors of known length. ``kind`` is that of its elements, if it is known."""

    def __init__(self, values: Iterable[Any] = (), kind: str | None = None) -> None:
        super().__init__(values)
        self.kind = kind if kind is not None or not self else getattr(self[0], "kind", None)


class Stacked:
    """A sequence of tensors of one shape, as many as a call makes: stacked along a first axis."""

    def __init__(self, variable: Variable, kind: str) -> None:
        self.variable, self.kind = variable, kind


class Optional:
    """A value that may be absent (``value`` is None then)."""

    def __init__(self, value: Any = None) -> None:
        self.value = value


def known_array(v: Variable) -> Array | None:
    """The value of a variable that depends on constants and parameters alone, else None."""
    if isinstance(v, Constant):
        return np.asarray(v.data)
    if all(isinstance(u, Constant) or _is_parameter(u) for u in leaves([v])):
        return np.asarray(evaluate([v], {})[0])
    return None


def _is_parameter(v: Variable) -> bool:
    """Whether it is a parameter, and no state of a random stream, which has integers."""
    return isinstance(v, Shared) and v.type.is_float


def depends_on(v: Variable) -> tuple[set[Variable], bool]:
    """The leaves whose values ``v`` needs, and whether it needs a size of one."""
    found: set[Variable] = set()
    sizes = False
    waiting: list[tuple[Variable, bool]] = [(v, True)]  # whether the value is needed, or the shape
    seen: set[tuple[Variable, bool]] = set()
    while waiting:
        u, value = waiting.pop()
        if (u, value) in seen:
            continue
        seen.add((u, value))
        node = u.owner
        if node is None:
            if value and not isinstance(u, Constant | Shared):
                found.add(u)
        elif value and node.op.size_of is not None:
            sizes = True
            waiting.append((node.inputs[0], False))
        else:
            host = node.op.host_inputs
            waiting += [(i, value or k in host) for k, i in enumerate(node.inputs)]
    return found, sizes


def array_of_objects(entries: list[Any]) -> Any:
    """A vector of variables and numbers as they are: NumPy would ask a variable for its value."""
    found = np.empty(len(entries), dtype=object)
    for i, entry in enumerate(entries):
        found[i] = entry
    return found
