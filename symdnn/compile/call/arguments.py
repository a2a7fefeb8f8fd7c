"""Inputs and outputs of a function: their declarations, and binding a call's arguments to them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from symdnn.errors import GraphError, InputError, TypeMismatch
from symdnn.graph.runtime import Runtime
from symdnn.graph.type import TensorType
from symdnn.graph.typing import Array
from symdnn.graph.values.interop import check_as, is_on_device
from symdnn.graph.values.storage import Storage
from symdnn.graph.values.structured import Structured
from symdnn.graph.values.value import as_numpy, number_taker
from symdnn.graph.variable import Constant, Shared, Variable, as_variable

_NO_DEVICE = Runtime()
#: See :meth:`symdnn.gpu.execution.runtime.CudaRuntime.adopt`.
Adopt = Callable[..., Any]


class In:
    """An input of a function with a default value, an update, or rules for conversion.

    ``value`` is the default: an array, which the function keeps and ``f[name]`` reads and sets,
    another function's ``f.container[name]``, which both then share, or a shared variable.
    ``update`` is an expression that becomes the default after each call.
    ``name`` is the keyword (default: the variable's). ``strict`` refuses conversion,
    ``allow_downcast`` permits loss of precision. An ``implicit`` input (default: one whose value
    is a shared variable) cannot be given in a call. ``borrow``, ``mutable`` and ``autoname`` are
    accepted for Theano's sake: inputs are never overwritten.
    """

    def __init__(
        self,
        variable: Variable | Structured,
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
        if not isinstance(variable, Variable | Structured):
            raise InputError(f"In: wanted a variable, got a {type(variable).__name__}")
        if isinstance(variable, Structured) and (update is not None or implicit):
            raise InputError(
                f"In({variable}): a value of several arrays has no update: use a shared variable"
            )
        if update is not None and value is None:
            raise InputError(f"In({variable}): an update needs a value to start from")
        if implicit and value is None:
            raise InputError(f"In({variable}): an implicit input needs a value")
        #: A structured variable (a sparse matrix) is split into arrays before anything reads it.
        self.variable: Any = variable
        self.name = name if name is not None else variable.name
        self.value = value
        self.update = None if update is None else as_variable(update)
        self.strict = strict
        self.allow_downcast = allow_downcast
        self.implicit = isinstance(value, Shared) if implicit is None else bool(implicit)
        self.borrow = bool(borrow)

    def state(self) -> Shared | None:
        """A shared variable that holds the default value; None when there is none.

        Raises :class:`~symdnn.errors.InputError` or ``DimensionMismatch`` for a value of another
        type.
        """
        type_ = self.variable.type
        if self.value is None:
            return None
        if isinstance(self.value, Shared):
            if not type_.accepts(self.value.type):
                raise TypeMismatch(f"In({self.variable})", str(type_), self.value.type)
            return self.value
        if isinstance(self.value, Storage):
            return Shared(type_, self.value, self.name)
        text = f"In({self.variable}): value"
        array = as_numpy(self.value, type_, text, allow_downcast=self.allow_downcast)
        return Shared(type_, Storage(array), self.name)

    def __repr__(self) -> str:
        return f"In({self.variable})"


class Out:
    """An output; with ``borrow`` it may be memory that the next call overwrites.

    With ``stay`` it is an array on the function's device, as with ``borrow``, but in memory of its
    own.
    """

    def __init__(self, variable: Any, borrow: bool = False, stay: bool = False) -> None:
        self.variable = as_variable(variable)
        self.borrow = borrow
        self.stay = stay

    def __repr__(self) -> str:
        return f"Out({self.variable})"


def as_in(item: object) -> In:
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


def as_out(item: Variable | Out) -> Out:
    """``item`` (an :class:`Out` or an expression) as an Out."""
    return item if isinstance(item, Out) else Out(item)


class Slot:
    """One argument: its variable in the compiled graph, and how values become arrays."""

    __slots__ = (
        "_takers", "changes", "declared", "default", "dtype", "may_stay", "ndim", "static", "text",
        "variable",
    )  # fmt: skip

    def __init__(self, declared: In, variable: Variable, default: Storage | None, text: str):
        self.declared, self.variable, self.default, self.text = declared, variable, default, text
        type_ = variable.type
        tensor = isinstance(type_, TensorType)
        self.dtype = type_.numpy if tensor else None
        self.ndim = type_.ndim if tensor else 0
        self.static = tensor and any(d is not None for d in type_.shape)
        #: Whether a value that is on the target's device may be taken there.
        self.may_stay = False
        #: Whether a call writes the memory of the default value.
        self.changes = False
        self._takers: dict[bool | None, Callable[[Any], Any]] = {}

    def convert(
        self, value: object, allow_downcast: bool | None, runtime: Runtime = _NO_DEVICE
    ) -> Any:
        """The value as a C-contiguous array of the input's type, on the host or on the device.

        ``runtime`` is that of the function's target.
        """
        if type(value) is np.ndarray and value.ndim == self.ndim and not self.static:
            if value.dtype == self.dtype:
                return value if value.flags.c_contiguous else runtime.dense(value)
            if self._keeps(value.dtype):
                return value.astype(self.dtype, order="C")
        if self.ndim == 0 and isinstance(value, int | float):
            made = self.taker(allow_downcast)(value)
            if made is not value:
                return made
        there = self.dtype is not None and runtime.known(value) is not None
        if there or (self.dtype is not None and is_on_device(value)):
            return self._adopted(value, runtime.adopt)
        return self._convert(value, allow_downcast, runtime)

    def _keeps(self, dtype: Any) -> bool:
        """Whether the input's dtype holds all numbers of another one, and takes them."""
        if self.dtype is None or self.declared.strict or dtype.kind not in "biuf":
            return False
        return np.can_cast(dtype, self.dtype, "safe")

    def taker(self, allow_downcast: bool | None) -> Callable[[Any], Any]:
        """:func:`~symdnn.graph.values.value.number_taker` for this scalar input."""
        if allow_downcast not in self._takers:
            rule, type_ = self.declared.allow_downcast, self.variable.type
            fits = isinstance(type_, TensorType) and not self.declared.strict
            rule = allow_downcast if rule is None else rule
            self._takers[allow_downcast] = number_taker(type_, rule) if fits else lambda v: v
        return self._takers[allow_downcast]

    def _adopted(self, value: object, adopt: Adopt | None) -> Any:
        if adopt is None:
            raise InputError(
                f"{self.text}: the array is on a GPU and the function runs on the CPU; "
                "copy it to the host first"
            )
        array = adopt(value, self.text)
        check_as(array, self.variable.type, self.text)
        return array if self.may_stay else adopt(array, self.text, True)

    def _convert(self, value: object, allow_downcast: bool | None, runtime: Runtime) -> Any:
        if self.dtype is None:
            return value
        rule = self.declared.allow_downcast
        array = as_numpy(
            value,
            self.variable.type,
            self.text,
            strict=self.declared.strict,
            allow_downcast=allow_downcast if rule is None else rule,
        )
        return array if array.flags.c_contiguous else runtime.dense(array)

    def kept(self) -> Array:
        """The value that a call reads where none is given."""
        assert self.default is not None
        value = self.default.host()
        return value.copy() if self.changes else value

    def store(self, value: object) -> None:
        """Replace the default value (``f[name] = value``)."""
        if self.default is None:
            raise InputError(f"{self.text} keeps no value; declare it with In(variable, value=...)")
        self.default.set(as_numpy(value, self.variable.type, self.text))


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
        self.by_name, self.ambiguous = _names(self.slots)

    def bind(
        self,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        trusted: bool = False,
        runtime: Runtime = _NO_DEVICE,
    ) -> dict[Variable, Any]:
        """The values of the inputs in a call, converted to their types.

        ``runtime`` takes arrays on its device, also if arguments are ``trusted``. Raises
        :class:`~symdnn.errors.InputError`, a ``TypeError``, for missing or unknown arguments.
        """
        if len(args) > len(self.positional):
            raise InputError(
                f"{self.function_name} takes {len(self.positional)} argument(s) "
                f"({self.signature()}), got {len(args)}"
            )
        given: dict[Variable, Any] = {}
        for slot, value in zip(self.positional, args):
            as_it_is = trusted and not is_on_device(value)
            given[slot.variable] = (
                value if as_it_is else slot.convert(value, self.allow_downcast, runtime)
            )
        if kwargs:
            self._by_keyword(given, kwargs, runtime)
        if len(given) != len(self.slots):
            self._fill_defaults(given)
        return given

    def in_order(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, ...] | None:
        """A value for each input, kept ones too; None where :meth:`bind` would raise an error."""
        found, taken, named = list[Any](), 0, 0
        for slot in self.slots:
            explicit, name = not slot.declared.implicit, slot.declared.name
            if explicit and taken < len(args):
                found.append(args[taken])
                taken += 1
            elif explicit and name is not None and name in kwargs:
                found.append(kwargs[name])
                named += 1
            elif slot.default is not None:
                found.append(slot.kept())
            else:
                return None
        fits = taken == len(args) and named == len(kwargs) and not self.ambiguous
        return tuple(found) if fits else None

    def _by_keyword(
        self, given: dict[Variable, Any], kwargs: Mapping[str, Any], runtime: Runtime
    ) -> None:
        for name, value in kwargs.items():
            slot = self.named(name)
            if slot.declared.implicit:
                raise InputError(f"{slot.text} is implicit: its value cannot be given in a call")
            if slot.variable in given:
                raise InputError(f"{self.function_name} got several values for {name!r}")
            given[slot.variable] = slot.convert(value, self.allow_downcast, runtime)

    def named(self, name: str) -> Slot:
        """The argument of this name."""
        if name in self.ambiguous:
            raise InputError(f"{self.function_name} has several inputs named {name!r}")
        try:
            return self.by_name[name]
        except KeyError:
            raise InputError(
                f"{self.function_name} has no input named {name!r}; it takes {self.signature()}"
            ) from None

    def find(self, key: Any) -> Slot:
        """The argument of a name, a position, or a variable that was declared as input."""
        if isinstance(key, str):
            return self.named(key)
        if isinstance(key, Variable):
            for slot in self.slots:
                if slot.declared.variable is key:
                    return slot
            raise InputError(f"{self.function_name}: {key} is none of its inputs")
        return self.slots[int(key)]

    def _fill_defaults(self, given: dict[Variable, Any]) -> None:
        missing = []
        for slot in self.slots:
            if slot.variable in given:
                continue
            if slot.default is None:
                missing.append(slot.declared.name or f"input of type {slot.variable.type}")
            else:
                given[slot.variable] = slot.kept()
        if missing:
            raise InputError(
                f"{self.function_name}: no value for {', '.join(missing)}; "
                f"it takes {self.signature()}"
            )

    def storages(self) -> list[Storage | Empty]:
        """The storage of each input; an empty one where it keeps no value."""
        return [s.default or Empty(s.declared.name) for s in self.slots]

    def signature(self) -> str:
        """The inputs as printed in errors: names (or types), defaults marked."""
        shown = [
            (s.declared.name or str(s.variable.type)) + ("=..." if s.default is not None else "")
            for s in self.slots
        ]
        return ", ".join(shown) or "no arguments"


class Empty:
    """The storage of an input that keeps no value between calls."""

    data = value = None
    storage = (None,)

    def __init__(self, name: str | None) -> None:
        self.name = name


class Stored:
    """The values that a function keeps for its inputs, by name, position or variable.

    ``f.container["lr"]`` is the storage, ``f.value["lr"]`` (and ``f["lr"]``) the value.
    """

    def __init__(self, arguments: Arguments, storages: bool) -> None:
        self._arguments, self._storages = arguments, storages

    def __getitem__(self, key: object) -> Any:
        slot = self._arguments.find(key)
        if slot.default is None:
            raise InputError(f"{slot.text} keeps no value; declare it with In(variable, value=...)")
        return slot.default if self._storages else slot.default.get()

    def __setitem__(self, key: object, value: object) -> None:
        self._arguments.find(key).store(value)

    def __contains__(self, key: object) -> bool:
        try:
            return self._arguments.find(key).default is not None
        except (InputError, IndexError):
            return False

    def __len__(self) -> int:
        return sum(s.default is not None for s in self._arguments.slots)


def _names(slots: Sequence[Slot]) -> tuple[dict[str, Slot], set[str]]:
    """Arguments by name, and the names that several arguments have."""
    names: dict[str, Slot] = {}
    twice = set()
    for slot in slots:
        name = slot.declared.name
        if name is None:
            continue
        if name in names:
            twice.add(name)
        names[name] = slot
    return {n: s for n, s in names.items() if n not in twice}, twice


def check_distinct(declared: Sequence[In]) -> None:
    """Raise :class:`GraphError` where one variable is an input twice."""
    seen = set()
    for d in declared:
        if d.variable in seen:
            raise GraphError(f"function: {d.variable} is an input twice")
        seen.add(d.variable)
