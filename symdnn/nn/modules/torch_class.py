"""A function that makes a layer, as the class that PyTorch has in its place.

``isinstance(m, nn.Conv2d)`` holds for each layer that ``nn.Conv2d(...)`` may be, and a program may
derive from it: ``class Standardized(nn.Conv2d)``.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from symdnn.nn.modules.arguments import of_known
from symdnn.nn.modules.module import Module

P = ParamSpec("P")
Layer = TypeVar("Layer", bound=Module)


class _Meta(type):
    """The class of these classes: whether an object is one of them, and calls."""

    def __instancecheck__(cls, instance: object) -> bool:
        kinds = cls.__dict__.get("_kinds")
        if kinds is None:
            return super().__instancecheck__(instance)
        return isinstance(instance, kinds)

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        make = cls.__dict__.get("_make")
        return super().__call__(*args, **kwargs) if make is None else make(*args, **kwargs)


def has_pytorchs_name(kind: type[Module]) -> bool:
    """Whether a class is a function's: another name of layers that have classes of their own."""
    return "_kinds" in vars(kind)


def torch_class(*kinds: type[Module]) -> Callable[[Callable[P, Layer]], Callable[P, Layer]]:
    """A decorator: the function, which returns one of ``kinds``, becomes a class.

    A subclass has the methods of the first of ``kinds`` and what the function's layer has.
    """

    def decorate(checked: Callable[P, Layer]) -> Callable[P, Layer]:
        function: Any = of_known(checked)

        @functools.wraps(function)
        def __init__(self: object, *args: Any, **kwargs: Any) -> None:
            made = function(*args, **kwargs)
            for name, value in vars(made).items():
                setattr(self, name, value)

        body = {
            "__doc__": function.__doc__, "__module__": function.__module__,
            "__qualname__": function.__qualname__, "__init__": __init__,
            "__signature__": inspect.signature(function),
            "_kinds": kinds, "_make": staticmethod(function),
        }  # fmt: skip
        made: Any = _Meta(function.__name__, (kinds[0],), body)
        return made  # type: ignore[no-any-return]

    return decorate
