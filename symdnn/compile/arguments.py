"""Inputs and outputs of a function: their declarations, and binding a call's arguments to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from symdnn.errors import GraphError, InputError
from symdnn.graph.storage import Storage
from symdnn.graph.type import TensorType
from symdnn.graph.value import as_numpy
from symdnn.graph.variable import Constant, Shared, Variable, as_variable

__all__ = ["Arguments", "In", "Out", "as_in", "as_out"]


class In:
    """An input of a function with a default value, an update, or rules for conversion.

    ``value`` is the default (an array, or a shared variable whose value is read and updated);
    ``update`` an expression that replaces it after each call. ``name`` is the keyword (default:
    the variable's). ``strict`` refuses conversion, ``allow_downcast`` permits loss of precision.
    ``borrow``, ``mutable`` and ``autoname`` are accepted for Theano's sake: inputs are never
    overwritten.
    """

    def __init__(
        self,
        variable: Variable,
        name: str | None = None,
        value: Any = None,
        update: Any = None,
        mutable: bool | None = None,
        strict: bool = False,
        allow_downcast: bool | None = None,
        autoname: bool = True,
        implicit: bool | None = None,
        borrow: bool | None = None,
        shared: bool = False,
    ) -> None:
        if not isinstance(variable, Variable):
            raise InputError(f"In: wanted a variable, got a {type(variable).__name__}")
        if update is not None and value is None:
            raise InputError(f"In({variable}): an update needs a value to start from")
        self.variable = variable
        self.name = name if name is not None else variable.name
        self.value = value
        self.update = None if update is None else as_variable(update)
        self.strict = strict
        self.allow_downcast = allow_downcast
        self.implicit = bool(implicit)
        self.borrow = bool(borrow)

    def __repr__(self) -> str:
        return f"In({self.variable})"


class Out:
    """An output; with ``borrow`` it may be memory that the next call overwrites."""

    def __init__(self, variable: Any, borrow: bool = False) -> None:
        self.variable = as_variable(variable)
        self.borrow = borrow

    def __repr__(self) -> str:
        return f"Out({self.variable})"


def as_in(item: Any) -> In:
    """``item`` (an In, a variable, or Theano's ``(name, variable, value)`` tuples) as an In."""
    if isinstance(item, In):
        declared = item
    elif isinstance(item, list | tuple):
        declared = _from_sequence(item)
    elif isinstance(item, Variable):
        declared = In(item)
    else:
        raise InputError(f"function: an input must be a variable or In, got {item!r}")
    v = declared.variable
    if isinstance(v, Shared):
        raise InputError(
            f"function: {v} is shared, so it cannot be an input; "
            "use givens={shared: expression} to put something in its place"
        )
    if isinstance(v, Constant):
        raise InputError(f"function: the constant {v} cannot be an input")
    return declared


def _from_sequence(item: Sequence[Any]) -> In:
    parts = list(item)
    name = parts.pop(0) if parts and isinstance(parts[0], str) else None
    variable = parts.pop(0)
    return In(variable, name=name, value=parts[0] if parts else None)


def as_out(item: Any) -> Out:
    """``item`` as an Out."""
    return item if isinstance(item, Out) else Out(item)


@dataclass
class Slot:
    """One argument: its variable in the compiled graph, and how values become arrays."""

    declared: In
    variable: Variable
    default: Storage | None
    text: str

    def convert(self, value: Any, allow_downcast: bool | None) -> Any:
        """The value as a C-contiguous array of the input's type."""
        type_ = self.variable.type
        if not isinstance(type_, TensorType):
            return value
        rule = self.declared.allow_downcast
        array = as_numpy(
            value,
            type_,
            self.text,
            strict=self.declared.strict,
            allow_downcast=allow_downcast if rule is None else rule,
        )
        return array if array.flags.c_contiguous else np.ascontiguousarray(array)


class Arguments:
    """The arguments of a function, by position and by name."""

    def __init__(
        self,
        function_name: str,
        declared: Sequence[In],
        variables: Sequence[Variable],
        states: Mapping[Variable, Shared],
        allow_downcast: bool | None,
    ) -> None:
        self.function_name = function_name
        self.allow_downcast = allow_downcast
        self.slots = []
        for i, (d, v) in enumerate(zip(declared, variables)):
            default = states[d.variable].storage if d.variable in states else None
            text = f"{function_name}: input {i}" + (f" ({d.name})" if d.name else "")
            self.slots.append(Slot(d, v, default, text))
        self.positional = [s for s in self.slots if not s.declared.implicit]
        self.by_name = _names(self.slots)

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[Variable, Any]:
        """Values of the inputs of a call, converted; raises ``TypeError`` like Python does."""
        if len(args) > len(self.positional):
            raise InputError(
                f"{self.function_name} takes {len(self.positional)} argument(s) "
                f"({self.signature()}), got {len(args)}"
            )
        given: dict[Variable, Any] = {}
        for slot, value in zip(self.positional, args):
            given[slot.variable] = slot.convert(value, self.allow_downcast)
        for name, value in kwargs.items():
            slot = self._named(name)
            if slot.variable in given:
                raise InputError(f"{self.function_name} got several values for {name!r}")
            given[slot.variable] = slot.convert(value, self.allow_downcast)
        if len(given) != len(self.slots):
            self._fill_defaults(given)
        return given

    def _named(self, name: str) -> Slot:
        try:
            return self.by_name[name]
        except KeyError:
            raise InputError(
                f"{self.function_name} has no input named {name!r}; it takes {self.signature()}"
            ) from None

    def _fill_defaults(self, given: dict[Variable, Any]) -> None:
        missing = []
        for slot in self.slots:
            if slot.variable in given:
                continue
            if slot.default is None:
                missing.append(slot.declared.name or f"input of type {slot.variable.type}")
            else:
                given[slot.variable] = slot.default.host()
        if missing:
            raise InputError(
                f"{self.function_name}: no value for {', '.join(missing)}; "
                f"it takes {self.signature()}"
            )

    def signature(self) -> str:
        """The inputs as printed in errors: names (or types), defaults marked."""
        shown = [
            (s.declared.name or str(s.variable.type)) + ("=..." if s.default is not None else "")
            for s in self.slots
        ]
        return ", ".join(shown) or "no arguments"


def _names(slots: Sequence[Slot]) -> dict[str, Slot]:
    names: dict[str, Slot] = {}
    twice = set()
    for slot in slots:
        name = slot.declared.name
        if name is None:
            continue
        if name in names:
            twice.add(name)
        names[name] = slot
    for name in twice:
        del names[name]
    return names


def check_distinct(declared: Sequence[In]) -> None:
    """Raise :class:`GraphError` where one variable is an input twice."""
    seen = set()
    for d in declared:
        if d.variable in seen:
            raise GraphError(f"function: {d.variable} is an input twice")
        seen.add(d.variable)
