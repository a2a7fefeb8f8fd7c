"""Elementwise functions of ``theano.tensor`` that are ops too: ``node.op == T.add``.

``add_inplace`` and its kin are the functions themselves, since the compiler decides what is done in
place.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from functools import cache
from typing import Any

from symdnn import tensor as T
from symdnn.ops.elementwise import activations, arithmetic, comparison, math, rounding, special
from symdnn.ops.elemwise import Elemwise

__all__: list[str] = []

_MODULES = (arithmetic, comparison, math, rounding, special, activations)
#: Name without underscores, in small letters -> the class of the op.
_KINDS: dict[str, type[Elemwise]] = {
    name.lower(): kind
    for module in reversed(_MODULES)
    for name, kind in vars(module).items()
    if isinstance(kind, type) and issubclass(kind, Elemwise) and kind.__module__ == module.__name__
}
#: What ``theano.tensor.inplace`` calls otherwise.
_IN_PLACE = {"abs_": "abs", "second": "fill", "transpose_": "transpose"}


class ElementwiseFunction:
    """An elementwise function that equals the op of the nodes that it makes."""

    def __init__(self, function: Callable[..., Any], kind: type[Elemwise]) -> None:
        functools.update_wrapper(self, function)
        self._function, self._kind = function, kind

    @property
    def scalar_op(self) -> ElementwiseFunction:
        """Itself: a function of numbers is the same op."""
        return self

    def __call__(self, *operands: Any, **words: Any) -> Any:
        return self._function(*operands, **words)

    def make_node(self, *operands: object) -> Any:
        """The node that computes it of ``operands``."""
        return self(*operands).owner

    def __eq__(self, other: object) -> bool:
        return other is self or type(other) is self._kind

    def __hash__(self) -> int:
        return hash(self._kind())

    def __reduce__(self) -> tuple[Any, ...]:
        return elementwise_function, (self._function.__name__, self._function)

    def __repr__(self) -> str:
        return f"<elementwise function {self._function.__name__}>"


@cache
def elementwise_function(name: str, function: Callable[..., Any]) -> Any:
    """``function`` as an op, if symdnn has an elementwise op of its name; else ``function``."""
    kind = _KINDS.get("fill" if name == "second" else name.replace("_", ""))
    if kind is None or dataclasses.fields(kind):  # type: ignore[arg-type]
        return function
    return ElementwiseFunction(function, kind)


def __getattr__(name: str) -> Any:
    base = name.removesuffix("_inplace")
    if base != name and hasattr(T, _IN_PLACE.get(base, base)):
        return getattr(T, _IN_PLACE.get(base, base))
    function = T.__dict__.get(name) or getattr(T.nnet, name, None)
    found = elementwise_function(name, function) if callable(function) else None
    if isinstance(found, ElementwiseFunction):
        return found
    raise AttributeError(name)
