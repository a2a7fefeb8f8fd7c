"""A formula with other libraries in the place of NumPy and SciPy."""

from __future__ import annotations

import functools
import importlib
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

__all__ = ["retold"]


def retold(
    f: Any, spaces: dict[str, Any], known: Mapping[int, Callable[..., Any]] | None = None
) -> Any:
    """``f`` with other modules in the place of those that ``spaces`` names, and so what it calls.

    ``known`` has functions by the ``id`` of those they replace. Functions are made again with other
    globals, closures and defaults; nothing is changed in place.
    """
    return _Retold(spaces, known or {}).of(f)


class _Retold:
    def __init__(self, spaces: dict[str, Any], known: Mapping[int, Callable[..., Any]]) -> None:
        self.spaces = spaces
        self.made: dict[int, Any] = dict(known)

    def of(self, value: Any) -> Any:
        if callable(value) and id(value) in self.made:
            return self.made[id(value)]
        if isinstance(value, types.ModuleType):
            return self.spaces.get(value.__name__, value)
        if isinstance(value, functools.partial):
            return functools.partial(self.of(value.func), *value.args, **value.keywords)
        if isinstance(value, list | tuple) and any(callable(v) for v in value):
            return type(value)(self.of(v) for v in value)
        if not callable(value) or isinstance(value, type):
            return value
        if isinstance(value, types.FunctionType) and not _is_numpys(value):
            return self._function(value)
        return self._named(value)

    def _named(self, f: Any) -> Any:
        """The function of that name in the other library, or ``f``."""
        name = getattr(f, "__name__", "")
        for own, space in self.spaces.items():
            module = _module(own)
            if getattr(module, name, None) is f and hasattr(space, name):
                return getattr(space, name)
        parts = str(getattr(f, "__module__", "")).split(".")
        inner = getattr(self.spaces.get("numpy"), parts[-1], None) if len(parts) > 1 else None
        return getattr(inner, name, f)

    def _function(self, f: types.FunctionType) -> Any:
        names = set(_names(f.__code__))
        space = dict(f.__globals__)
        made = types.FunctionType(f.__code__, space, f.__name__, None, _cells(f))
        self.made[id(f)] = made
        space.update({n: self.of(space[n]) for n in names if n in space})
        made.__defaults__ = tuple(map(self.of, f.__defaults__)) if f.__defaults__ else None
        made.__kwdefaults__ = f.__kwdefaults__
        for cell, own in zip(made.__closure__ or (), f.__closure__ or ()):
            cell.cell_contents = self.of(own.cell_contents)
        return made


def _cells(f: types.FunctionType) -> tuple[types.CellType, ...] | None:
    return tuple(types.CellType() for _ in f.__closure__) if f.__closure__ else None


def _is_numpys(f: Any) -> bool:
    return str(f.__module__).partition(".")[0] in ("numpy", "scipy")


def _module(name: str) -> Any:
    return importlib.import_module(name)


def _names(code: types.CodeType) -> Iterator[str]:
    """Names that a function and the functions inside of it use."""
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from _names(inner)
