"""The arguments of a traced function: leaves, their kinds, and the key of the compiled function."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from symdnn.errors import ArgumentError
from symdnn.graph.type import TensorType, dtype_name
from symdnn.graph.values import interop
from symdnn.graph.values.tree import Tree, flatten, paths
from symdnn.graph.variable import Variable, as_variable

__all__ = [
    "Kind",
    "Signature",
    "as_leaf",
    "changes",
    "kind_of",
    "read",
    "signature_of",
    "variable_of",
]

_NUMBERS = {float: "float64", int: "int64", complex: "complex128"}
_FLAT = frozenset([float, int, complex, bool])
#: Classes of arrays of which one was on a device.
_ARRAYS: set[type] = set()


@dataclass(frozen=True)
class Kind:
    """What a trace knows about an argument: dtype, dimensions of size 1, whether it is a number."""

    dtype: str
    ones: tuple[bool, ...] = ()
    number: type | None = None

    def __str__(self) -> str:
        if self.number is not None:
            return f"a Python {self.number.__name__}"
        dims = ", ".join("1" if one else "?" for one in self.ones)
        return f"{self.dtype}({dims})"


def as_leaf(value: Any) -> Any:
    """A leaf inside of a trace: a variable for an array or number; strings and functions
    unchanged.
    """
    if isinstance(value, Variable):
        return value
    is_array = isinstance(value, int | float | complex | np.generic) or hasattr(value, "__array__")
    return as_variable(value) if is_array or interop.is_on_device(value) else value


def kind_of(value: Any, where: str) -> Kind:
    """The kind of a leaf. Raises :class:`~symdnn.errors.ArgumentError` if it is no array."""
    if type(value) in _NUMBERS:
        return Kind(_NUMBERS[type(value)], (), type(value))
    if interop.is_on_device(value):
        dtype, shape = str(np.dtype(value.dtype)), tuple(value.shape)
    else:
        try:
            array = np.asarray(value)
        except Exception as error:
            raise ArgumentError(_no_array(where, value)) from error
        if array.dtype.kind not in "biufcV" or array.dtype.names is not None:
            raise ArgumentError(_no_array(where, value))
        dtype, shape = dtype_name(array.dtype), array.shape
    return Kind(dtype, tuple([n == 1 for n in shape]))


def _no_array(where: str, value: Any) -> str:
    return (
        f"{where}: wanted an array, a number or a tree of them, got {value!r} of type "
        f"{type(value).__name__}. Make the argument static (static_argnames), register its class "
        "as a container (symdnn.register_tree), or close over it"
    )


def variable_of(kind: Kind, name: str) -> Variable:
    """The variable by which a leaf is traced."""
    v: Variable = TensorType(kind.dtype, tuple([1 if one else None for one in kind.ones]))(name)
    v.number_kind = kind.number
    return v


@dataclass(frozen=True)
class Signature:
    """The key of a trace: the structure of the arguments, their kinds, the static ones."""

    tree: Tree
    kinds: tuple[Kind, ...]
    static: tuple[tuple[str, Any], ...]
    names: tuple[str, ...]


def signature_of(
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    static: Mapping[str, Any],
    names: Sequence[str],
    function: str,
) -> tuple[Signature, list[Any]]:
    """The signature of a call, and the leaves of its arguments.

    ``names`` are those of the positional arguments.
    """
    leaves, tree = flatten((tuple(args), dict(kwargs)))
    positional, named = tree.children
    where = [
        *(p for n, c in zip(names, positional.children) for p in paths(c, n)),
        *(p for n, c in zip(sorted(kwargs), named.children) for p in paths(c, n)),
    ]
    kinds = tuple([kind_of(v, f"{function}: {n}") for v, n in zip(leaves, where)])
    return Signature(tree, kinds, tuple(sorted(static.items())), tuple(where)), leaves


def changes(new: Signature, old: Sequence[Signature]) -> str:
    """The difference from the most similar of the ``old`` signatures, in words."""
    found = min((_differences(new, s) for s in old), key=len)
    return "; ".join(found)


def _differences(new: Signature, old: Signature) -> list[str]:
    found = []
    if new.tree != old.tree:
        found.append(f"the structure of the arguments was {old.tree} and is {new.tree}")
    else:
        found += [
            f"{n} was {b} and is {a}" for n, a, b in zip(new.names, new.kinds, old.kinds) if a != b
        ]
    before = dict(old.static)
    for name, value in new.static:
        if name not in before or before[name] != value:
            found.append(f"the static argument {name} was {before.get(name)!r} and is {value!r}")
    return found


def read(value: Any, leaves: list[Any], key: list[Any]) -> bool:
    """Append the leaves of a value, and the key of its structure.

    False if it has a variable. It is a quick form of :func:`flatten`, for the steady call.
    """
    cls = type(value)
    if cls is np.ndarray:
        leaves.append(value)
        key += (value.dtype, value.shape)
        return True
    if cls in _FLAT:
        leaves.append(value)
        key.append(cls)
        return True
    if cls is tuple or cls is list:
        key += (cls, len(value))
        return all([read(v, leaves, key) for v in value])
    if cls is dict:
        try:
            names = sorted(value)
        except TypeError:
            names = list(value)
        key += (cls, tuple(names))
        return all([read(value[n], leaves, key) for n in names])
    if cls in _ARRAYS or interop.is_on_device(value):
        _ARRAYS.add(cls)
        leaves.append(value)
        key += (cls, value.dtype, value.shape)
        return True
    return _read_other(value, leaves, key)


def _read_other(value: Any, leaves: list[Any], key: list[Any]) -> bool:
    found, tree = flatten(value)
    key.append(tree)
    for v in found:
        if isinstance(v, Variable):
            return False
        leaves.append(v)
        shape = getattr(v, "shape", None)
        dtype = getattr(v, "dtype", None)
        key += (type(v), str(dtype), None if shape is None else tuple(shape))
    return True
