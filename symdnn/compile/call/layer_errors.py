"""Errors of a call name the layer that made the failing node, and the sizes that came to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from symdnn.compile.call.arguments import Arguments
from symdnn.config import config
from symdnn.errors import DimensionMismatch, IndexOutOfRange
from symdnn.graph.origin import LayerCall, Origin
from symdnn.graph.tracing import untraced
from symdnn.graph.traverse import ancestors
from symdnn.graph.variable import Variable
from symdnn.ops.core.shape import shape


def tell_layer(
    error: BaseException, arguments: Arguments, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> None:
    """Put the layer before the text of an error about sizes or indices.

    A layer of symdnn is called again with inputs declared as of the sizes that came. What it says
    of them replaces the text, which is that of a node within it.
    """
    if not isinstance(error, DimensionMismatch | IndexOutOfRange) or error.origin is None:
        return
    origin: Origin = error.origin
    error.origin = None
    given = arguments.in_order(args, kwargs)
    names = [s.declared.variable for s in arguments.slots]
    values = {} if given is None else dict(zip(names, given, strict=True))
    with untraced(), config.change_flags(compute_test_value="off"):
        # Of joined nodes the first one that can tell: the input of a later one comes from it.
        told = next(filter(None, (_told(call, values) for call in origin.calls)), None)
    where, said = told or (origin.module, "")
    if where:
        error.args = (f"{where}: {said or error}", *error.args[1:])


def _told(call: LayerCall, values: Mapping[Variable, Any]) -> tuple[str, str] | None:
    """What the call says of the sizes that its inputs have; None if they are unknown."""
    above = set(ancestors(call.tensors))
    given = {v: value for v, value in values.items() if v in above}
    try:
        shapes = [tuple(map(int, shape(v).eval(given))) for v in call.tensors]
        return call.told(shapes)
    except Exception:  # in a loop's step, or sizes that do not fit; the user's error is not lost
        return None
