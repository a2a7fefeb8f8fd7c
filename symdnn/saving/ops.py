"""Ops as data: a name out of a list, and fields that are what their class declares.

Nothing that a file says is imported, evaluated or called; names that are not in the list are
refused.
"""

from __future__ import annotations

import importlib
import math
import pkgutil
import re
from collections.abc import Callable
from dataclasses import MISSING, fields
from functools import cache
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints, overload

import numpy as np

from symdnn.errors import InputError
from symdnn.graph.inner import InnerGraph
from symdnn.graph.op import Op
from symdnn.graph.place import Place
from symdnn.graph.type import DTYPES
from symdnn.ops.attention.scores import Scores
from symdnn.ops.control.scan import Carry
from symdnn.ops.core.scalar import FUNCTIONS, Instruction, ScalarProgram, number_of_text
from symdnn.ops.lowered.epilogue import Epilogue
from symdnn.ops.lowered.fused_rows import Stage
from symdnn.ops.lowered.gathered import Selection
from symdnn.ops.lowered.stencil import Shifted, StencilResult, StencilStage
from symdnn.world.group import Group

OpClass = TypeVar("OpClass", bound=type[Op])

#: Values of fields that are no ops, by name.
_STRUCTS: dict[str, type] = {
    c.__name__: c
    for c in (
        Carry, Epilogue, Group, Instruction, ScalarProgram, Scores, Selection, Shifted, Stage,
        StencilResult, StencilStage,
    )
}  # fmt: skip
#: Strings that are for people; all others are words, since kernels' texts may hold them.
_FREE_TEXTS = ("message", "name")
_WORD = re.compile(r"[A-Za-z0-9_.+?-]{0,64}")
_MOST_INT = 2**64
_MOST_TEXT = 10_000


#: Writes a graph inside of an op as what JSON holds, and reads it; raises ``ValueError``.
Write = Callable[[InnerGraph], Any]
Read = Callable[[Any], InnerGraph]


# -- which ops there are ---------------------------------------------------------------------------

_users: dict[str, type[Op]] = {}


@cache
def _own() -> dict[str, type[Op]]:
    """The ops of symdnn by name."""
    package = importlib.import_module("symdnn.ops")
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        importlib.import_module(module.name)
    found: dict[str, type[Op]] = {}
    rest: list[type[Op]] = [Op]
    while rest:
        for each in rest.pop().__subclasses__():
            rest.append(each)
            concrete = hasattr(each, "__dataclass_fields__") and not each.__dict__.get(
                "abstract", False
            )
            if concrete and each.__module__.startswith(f"{package.__name__}."):
                found[each.__name__] = each
    return found


@overload
def saved_op(op: OpClass) -> OpClass: ...


@overload
def saved_op(*, name: str) -> Callable[[OpClass], OpClass]: ...


def saved_op(op: object = None, *, name: str = "") -> Any:
    """A decorator for your own op class, so that functions with it can be saved and loaded.

    The file has ``name`` (default: the class's) and the op's fields, but not the class: the program
    that loads it must define the op, too. Fields are numbers, strings, tuples of these, other ops,
    and graphs (:class:`~symdnn.graph.inner.InnerGraph`).

    Raises :class:`~symdnn.errors.InputError` if it is no op, and for a name that is taken.

    >>> from dataclasses import dataclass
    >>> from symdnn.graph.op import Op
    >>> @saved_op(name="example.Twice")
    ... @dataclass(frozen=True)
    ... class Twice(Op):
    ...     def infer(self, x):
    ...         return x
    ...
    ...     def reference(self, x):
    ...         return 2 * x
    """
    if op is None:
        return lambda made: _register(made, name)
    return _register(op, name)


def _register(op: Any, name: str) -> Any:
    if not _is_op(op):
        raise InputError(f"saved_op: wanted the class of an op, a frozen dataclass, got {op!r:.60}")
    wanted = name or op.__name__
    taken = _own().get(wanted) or _users.get(wanted)
    if taken is not None and (taken.__module__, taken.__qualname__) != (
        op.__module__, op.__qualname__
    ):  # fmt: skip
        raise InputError(f"saved_op: {wanted!r} is {taken.__module__}.{taken.__qualname__} already")
    _users[wanted] = op
    return op


def _is_op(value: object) -> bool:
    is_class = isinstance(value, type) and issubclass(value, Op)
    return is_class and hasattr(value, "__dataclass_fields__")


def _name_of(op: Op) -> str:
    kind = type(op)
    if _own().get(kind.__name__) is kind:
        return kind.__name__
    for name, known in _users.items():
        if known is kind:
            return name
    raise InputError(
        f"save: {kind.__module__}.{kind.__qualname__} is no op of symdnn; decorate its class with "
        "symdnn.saved_op, here and in the program that loads the file"
    )


# -- writing ---------------------------------------------------------------------------------------


def encode(value: object, write: Write, where: str = "") -> Any:
    """``value``, an op or a field of one, as JSON values.

    Raises :class:`~symdnn.errors.InputError` for a function or another object that is no data.
    """
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, Op):
        return _encode_op(value, write)
    if isinstance(value, InnerGraph):
        return {"graph": write(value)}
    if isinstance(value, Place):
        return {"place": str(value)}
    if isinstance(value, tuple):
        return [encode(v, write, where) for v in value]
    if isinstance(value, bool | np.bool_):
        return bool(value)
    if isinstance(value, int | np.integer):
        return int(value)
    if isinstance(value, float | np.floating):
        return float(value) if math.isfinite(value) else {"float": str(float(value))}
    if _STRUCTS.get(type(value).__name__) is type(value):
        return {"struct": type(value).__name__, "fields": _encode_fields(value, write, where)}
    raise InputError(
        f"save: {where} holds {value!r:.60}, a {type(value).__name__}, which is no data; what a "
        "Python function computes cannot be saved"
    )


def _encode_op(op: Op, write: Write) -> Any:
    name = _name_of(op)
    given = _encode_fields(op.portable(), write, str(op))
    version = {"version": op.saved_version} if op.saved_version != 1 else {}
    return {"op": name, **version, "fields": given}


def _encode_fields(value: Any, write: Write, where: str) -> dict[str, Any]:
    return {
        f.name: encode(getattr(value, f.name), write, f"{where}, field {f.name},")
        for f in fields(value)
        if f.compare
    }


# -- reading ---------------------------------------------------------------------------------------


def decode(entry: Any, read: Read) -> Any:
    """The op or the value of an entry. Raises ``ValueError`` for values that no op can have."""
    if entry is None or isinstance(entry, bool):
        return entry
    if isinstance(entry, int):
        if abs(entry) >= _MOST_INT:
            raise ValueError("an int of more than 64 bits")
        return entry
    if isinstance(entry, float | str):
        return entry
    if isinstance(entry, list):
        return tuple([decode(e, read) for e in entry])
    for kind, reader in _READERS.items():
        if kind in entry:
            return reader(entry, read)
    raise ValueError(f"a value that is none: {entry!r:.60}")


def _decode_op(entry: dict[str, Any], read: Read) -> Op:
    name, version = entry["op"], entry.get("version", 1)
    kind = _own().get(name) or _users.get(name)
    if kind is None:
        raise ValueError(
            f"this program knows no op {name!r:.60}: a later symdnn has it, or it is a user's, "
            "whose class is to be decorated with symdnn.saved_op before the file is loaded"
        )
    given = entry["fields"]
    if type(version) is not int or not 1 <= version <= kind.saved_version:
        raise ValueError(f"{name} is of version {version!r:.20}, known is {kind.saved_version}")
    if version < kind.saved_version:
        given = kind.upgraded(version, dict(given))
    op: Op = _made(kind, given, read)
    return op.portable()


def _decode_struct(entry: dict[str, Any], read: Read) -> Any:
    if entry["struct"] not in _STRUCTS:
        raise ValueError(f"a value of no known kind: {entry['struct']!r:.60}")
    value = _made(_STRUCTS[entry["struct"]], entry["fields"], read)
    if isinstance(value, ScalarProgram):
        _check_program(value)
    return value


_READERS: dict[str, Callable[[dict[str, Any], Read], Any]] = {
    "op": _decode_op,
    "struct": _decode_struct,
    "graph": lambda entry, read: read(entry["graph"]),
    "place": lambda entry, _: Place.parse(entry["place"]),
    "float": lambda entry, _: {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}[entry["float"]],
}


def _made(kind: type, given: dict[str, Any], read: Read) -> Any:
    """An object of a dataclass; missing fields have their defaults."""
    declared = {f.name: f for f in fields(kind) if f.compare}
    if unknown := sorted(set(given) - set(declared)):
        raise ValueError(f"{kind.__name__} has no field {', '.join(unknown):.60}")
    hints = _hints(kind)
    values = {}
    for name, entry in given.items():
        values[name] = decode(entry, read)
        _check_field(kind, name, values[name], hints[name])
    if kind.__dataclass_params__.init:  # type: ignore[attr-defined]
        return kind(**values)
    made: Any = object.__new__(kind)  # its constructor takes something else: graphs, say
    for f in fields(kind):
        default = f.default_factory() if f.default_factory is not MISSING else f.default
        value = values.get(f.name, default)
        if value is MISSING:
            raise ValueError(f"{kind.__name__} lacks its field {f.name}")
        object.__setattr__(made, f.name, value)
    return made


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def _check_field(kind: type, name: str, value: object, hint: object) -> None:
    if not _fits(value, hint):
        raise ValueError(f"{kind.__name__} has {value!r:.60} as its {name}")
    for text in _texts(value):
        is_dtype = name == "dtype" or name.endswith("_dtype")
        if is_dtype and text and text not in DTYPES:
            raise ValueError(f"{kind.__name__} has a {name} of {text!r:.60}")
        if len(text) > _MOST_TEXT or (name not in _FREE_TEXTS and not _WORD.fullmatch(text)):
            raise ValueError(f"{kind.__name__} has {text!r:.60} as its {name}")


def _texts(value: object) -> list[str]:
    if isinstance(value, str):
        return [value]
    return [t for v in value for t in _texts(v)] if isinstance(value, tuple) else []


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value fits an annotation, of those that ops' fields have."""
    if hint is Any:
        return True
    if hint is None or hint is NoneType:
        return value is None
    origin, inside = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return any(_fits(value, h) for h in inside)
    if origin is tuple:
        if not isinstance(value, tuple):
            return False
        if inside[-1:] == (Ellipsis,):
            return all(_fits(v, inside[0]) for v in value)
        return len(value) == len(inside) and all(_fits(v, h) for v, h in zip(value, inside))
    if hint is float:
        return type(value) in (int, float)
    if origin is Callable:
        return False  # ops can be called, too
    return type(value) is hint if hint in (int, bool) else isinstance(value, origin or hint)


def _check_program(program: ScalarProgram) -> None:
    """Raise ``ValueError`` for a program that no builder makes."""
    known = list(program.inputs)
    for step in program.body:
        arity = {"const": 0, "cast": 1, "bitcast": 1, "select": 3}.get(step.name)
        if arity is None:
            if step.name not in FUNCTIONS:
                raise ValueError(f"no instruction is called {step.name!r:.60}")
            arity = FUNCTIONS[step.name].arity
        if len(step.args) != arity or not all(0 <= a < len(known) for a in step.args):
            raise ValueError(f"{step.name} of {step.args!r:.60}")
        if step.name == "bitcast" and {known[step.args[0]], step.dtype} != {"float32", "int32"}:
            raise ValueError(f"bitcast to {step.dtype!r:.60}")
        if step.name == "const":
            number_of_text(step.value, step.dtype)
        known.append(step.dtype)
    if not set(known) <= set(DTYPES) or not all(0 <= v < len(known) for v in program.outputs):
        raise ValueError("a scalar program of impossible dtypes or outputs")
