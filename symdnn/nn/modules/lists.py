"""PyTorch's lists and dicts of modules and of parameters, which are modules themselves.

Plain lists and dicts serve, too, since a module searches its attributes. These classes are printed
as a part of the network, and refuse entries of other types.
"""

from __future__ import annotations

from collections.abc import ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView
from typing import TYPE_CHECKING, Any

from symdnn.compile.shared import shared
from symdnn.errors import InputError
from symdnn.graph.variable import Shared, Variable
from symdnn.nn.modules.module import Module
from symdnn.nn.modules.naming import name_variables
from symdnn.nn.modules.torch_keywords import torch_keywords

__all__ = ["ModuleDict", "ModuleList", "ParameterDict", "ParameterList"]


class _Held(Module):
    """Base: entries in ``held``, each checked when it is added."""

    unnamed = "held"
    held: Any

    def forward(self, *inputs: Any) -> Any:
        raise InputError(
            f"{type(self).__name__} is a container and computes nothing; call its entries"
        )

    def _checked(self, value: object) -> Module:
        if not isinstance(value, Module):
            raise InputError(f"{type(self).__name__}: wanted a module, got {value!r:.60}")
        return value

    def _changed(self) -> None:
        name_variables(self)

    def __len__(self) -> int:
        return len(self.held)

    def __bool__(self) -> bool:
        return bool(self.held)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.held)

    def __contains__(self, entry: object) -> bool:
        return any(v is entry for v in self.held)


@torch_keywords(modules="entries")
class ModuleList(_Held):
    """A list of modules, which is part of the network that it is an attribute of.

    It has the methods of Python's lists; its slices are lists of modules. (PyTorch's ModuleList.)

    >>> ModuleList([Module(), Module()])
    nn.ModuleList {
      (0): nn.Module
      (1): nn.Module
    }
    """

    def __init__(self, entries: Iterable[Any] | None = None) -> None:
        self.held = []
        self.extend(() if entries is None else entries)

    def append(self, entry: object) -> ModuleList:
        """Add an entry at the end; returns the list."""
        return self.insert(len(self), entry)

    def extend(self, entries: Iterable[Any]) -> ModuleList:
        """Add entries at the end; returns the list."""
        if not isinstance(entries, Iterable) or isinstance(entries, Variable):
            raise InputError(f"{type(self).__name__}: wanted entries to add, got {entries!r:.60}")
        self.held += [self._checked(v) for v in entries]
        self._changed()
        return self

    def insert(self, index: int, entry: object) -> ModuleList:
        """Add an entry before the entry ``index``; returns the list."""
        self.held.insert(index, self._checked(entry))
        self._changed()
        return self

    def pop(self, index: int = -1) -> Any:
        """Remove an entry; returns it."""
        entry = self.held.pop(index)
        self._changed()
        return entry

    def __getitem__(self, index: object) -> Any:
        if isinstance(index, slice):
            return type(self)(self.held[index])
        return self.held[index]

    def __setitem__(self, index: int, entry: Module) -> None:
        self.held[index] = self._checked(entry)
        self._changed()

    def __delitem__(self, index: int | slice) -> None:
        del self.held[index]
        self._changed()

    def __iadd__(self, entries: Iterable[Module]) -> ModuleList:
        return self.extend(entries)

    def __add__(self, entries: Iterable[Module]) -> ModuleList:
        return type(self)([*self.held, *entries])


@torch_keywords(modules="entries")
class ModuleDict(_Held):
    """Modules by name, a part of the network that it is an attribute of.

    It has the methods of Python's dicts and their order; names are strings without dots. An entry
    is an attribute, too: ``parts.head`` is ``parts["head"]``. (PyTorch's ModuleDict.)
    """

    def __init__(self, entries: object = None) -> None:
        self.held = {}
        self.update({} if entries is None else entries)

    def __setattr__(self, name: str, value: object) -> None:
        held = vars(self).get("held", {})
        own = hasattr(type(self), name)
        if not own and (name in held or (isinstance(value, Module | Shared) and name != "held")):
            self[name] = value
        else:
            super().__setattr__(name, value)

    if not TYPE_CHECKING:  # a checker of types would believe that every name exists

        def __getattr__(self, name: str) -> Any:
            held = vars(self).get("held", {})
            return held[name] if name in held else super().__getattr__(name)

    def update(self, entries: Any) -> None:
        """Add or replace entries, from a mapping or from pairs (name, entry)."""
        try:
            pairs = dict(entries.items() if hasattr(entries, "items") else entries)
        except (TypeError, ValueError):
            raise InputError(
                f"{type(self).__name__}: wanted a dict or pairs (name, entry), got {entries!r:.60}"
            ) from None
        checked = {self._key(k): self._checked(v) for k, v in pairs.items()}
        self.held.update(checked)
        self._changed()

    def _key(self, name: object) -> str:
        if not isinstance(name, str) or not name or "." in name:
            raise InputError(
                f"{type(self).__name__}: wanted a name without dots for an entry, got {name!r:.60}"
            )
        return name

    def pop(self, name: str) -> Any:
        """Remove an entry; returns it."""
        return self.held.pop(name)

    def clear(self) -> None:
        """Remove all entries."""
        self.held.clear()

    def keys(self) -> KeysView[str]:
        """The names."""
        found: KeysView[str] = self.held.keys()
        return found

    def values(self) -> ValuesView[Any]:
        """The entries."""
        found: ValuesView[Any] = self.held.values()
        return found

    def items(self) -> ItemsView[str, Any]:
        """Pairs of name and entry."""
        found: ItemsView[str, Any] = self.held.items()
        return found

    def get(self, name: str, default: object = None) -> Any:
        """The entry of this name, or ``default``."""
        return self.held.get(name, default)

    def __getitem__(self, name: str) -> Any:
        return self.held[name]

    def __setitem__(self, name: str, entry: object) -> None:
        self.update({name: entry})

    def __delitem__(self, name: str) -> None:
        del self.held[name]

    def __contains__(self, name: object) -> bool:
        return name in self.held


class _Parameters:
    """Base of containers of shared variables; arrays become shared variables."""

    def _checked(self, value: object) -> Any:
        if isinstance(value, Shared):
            return value
        try:
            array = shared(value)
        except (TypeError, ValueError) as error:
            raise InputError(
                f"{type(self).__name__}: wanted a shared variable or an array, got {value!r:.60}"
            ) from error
        return shared(value, shape=array.get_value(borrow=True).shape)


@torch_keywords(values="entries")
class ParameterList(_Parameters, ModuleList):
    """A list of shared variables, trained with the network that it is an attribute of.

    Arrays become shared variables. (PyTorch's ParameterList.)
    """

    def describe(self) -> str:
        return f"({', '.join(str(v.type) for v in self.held)})"


@torch_keywords(parameters="entries")
class ParameterDict(_Parameters, ModuleDict):
    """Shared variables by name, trained with the network that it is an attribute of.

    Arrays become shared variables. (PyTorch's ParameterDict.)
    """

    def setdefault(self, name: str, default: object) -> Any:
        """The entry of this name; ``default`` is added if there is none."""
        if name not in self.held:
            self[name] = default
        return self.held[name]

    def copy(self) -> ParameterDict:
        """Another dict of the same variables."""
        return type(self)(self.held)

    def __or__(self, other: Mapping[str, Any]) -> ParameterDict:
        return type(self)({**self.held, **dict(other.items())})

    def describe(self) -> str:
        return f"({', '.join(f'{n}: {v.type}' for n, v in self.held.items())})"
