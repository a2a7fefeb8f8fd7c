"""PyTorch's keywords and attributes of classes whose own arguments have Torch7's names."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from symdnn.errors import InputError

Class = TypeVar("Class", bound=type[Any])


def torch_keywords(**names: str) -> Callable[[Class], Class]:
    """A class decorator: ``in_features="inputSize"`` lets the constructor take either keyword.

    ``layer.in_features`` is ``layer.inputSize`` then, where the class has nothing of that name. The
    class's ``by_position`` says how many arguments may be given by position, and why no more: what
    the next one is in Torch7 and in PyTorch.
    """

    def decorate(cls: Class) -> Class:
        constructor: Callable[..., None] = cls.__init__

        @functools.wraps(constructor)
        def __init__(self: object, *args: Any, **kwargs: Any) -> None:
            name = type(self).__name__
            most, why = getattr(type(self), "by_position", None) or (len(args), "")
            if len(args) > most:
                raise InputError(f"{name}: argument {most + 1} by position {why}")
            constructor(self, *args, **_translated(name, names, kwargs))

        __init__.torch_names = names  # type: ignore[attr-defined]
        cls.__init__ = __init__
        for theirs, ours in names.items():
            if not hasattr(cls, theirs):
                setattr(cls, theirs, _attribute(ours))
        listed = ", ".join(f"``{theirs}`` for ``{ours}``" for theirs, ours in names.items())
        if names and cls.__doc__:
            cls.__doc__ = f"{cls.__doc__.rstrip()}\n\n    PyTorch's keywords: {listed}.\n    "
        return cls

    return decorate


def own_keywords(cls: type[Any], kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
    """``kwargs`` under the names that the constructor itself has."""
    names = getattr(cls.__init__, "torch_names", None)
    return _translated(cls.__name__, names, kwargs) if names else kwargs


def _translated(
    what: str, names: Mapping[str, str], kwargs: Mapping[str, Any]
) -> Mapping[str, Any]:
    made: dict[str, Any] = {}
    for key, value in kwargs.items():
        ours = names.get(key, key)
        if ours in made:
            both = " and ".join(k for k in kwargs if names.get(k, k) == ours)
            raise InputError(f"{what}: {both} are one argument; wanted one of them")
        made[ours] = value
    return made


def _attribute(ours: str) -> property:
    def read(self: object) -> Any:
        return getattr(self, ours)

    def write(self: object, value: object) -> None:
        setattr(self, ours, value)

    return property(read, write, doc=f"PyTorch's name of ``{ours}``.")
