"""Functions made of layers without parameters."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from symdnn.errors import ArgumentError
from symdnn.graph.variable import Variable

#: Words of PyTorch's functions without a meaning here.
_IGNORED = frozenset({"size_average", "reduce", "inplace", "_stacklevel"})


def function_of(
    name: str, layer: Callable[..., Any], inputs: Sequence[str] = ("input",),
    order: Sequence[str] = (),
) -> Callable[..., Any]:  # fmt: skip
    """The function ``name(*inputs, *options)`` that calls ``layer(*options)`` with the inputs.

    ``order`` names the options by position, where that is not the order of the layer's own.
    """
    taken = [p for p in inspect.signature(layer).parameters if p != "self"]
    positions = list(order) or taken

    def function(*args: object, **options: object) -> Any:
        given = dict(zip(inputs, args))
        for word in inputs[len(args) :]:
            if word not in options:
                raise ArgumentError(f"{name}: wanted {', '.join(inputs)}; {word} is missing")
            given[word] = options.pop(word)
        rest = args[len(inputs) :]
        if len(rest) > len(positions):
            raise ArgumentError(
                f"{name}: wanted at most {len(inputs) + len(positions)} arguments, got {len(args)}"
            )
        chosen = {k: v for k, v in options.items() if k not in _IGNORED or k in taken}
        made = layer(**dict(zip(positions, rest)), **chosen)
        return made(*given.values())

    words = [inspect.Parameter(n, inspect.Parameter.POSITIONAL_OR_KEYWORD) for n in inputs]
    kept = inspect.signature(layer).parameters
    more = [
        kept[n].replace(kind=inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=Any)
        for n in positions
        if n in kept and kept[n].kind not in (inspect.Parameter.VAR_KEYWORD,)
    ]
    needed = [p for p in more if p.default is p.empty]
    having = [p for p in more if p.default is not p.empty]
    function.__name__ = function.__qualname__ = name
    function.__doc__ = _documented(name, layer)
    signature = inspect.Signature([*words, *needed, *having], return_annotation=Variable)
    vars(function)["__signature__"] = signature
    return function


def _documented(name: str, layer: Callable[..., Any]) -> str:
    """What the function computes: the layer's own text, without its examples."""
    first = f"``nn.{getattr(layer, '__name__', name)}`` as a function; PyTorch's arguments."
    text, _, _ = (inspect.getdoc(layer) or "").partition(">>>")
    return f"{first}\n\n{text.strip()}".strip()
