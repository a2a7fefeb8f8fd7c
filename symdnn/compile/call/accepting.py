"""Arguments that need no conversion, taken by generated code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from symdnn.compile.call.fast import Calls

__all__ = ["STEPS_OF_LOOPS", "STEPS_OF_PRODUCTS", "accepting"]

#: Arguments with fewer elements are copied where they are not contiguous: then a call takes no more
#: time in Python than with those that are.
_MIN_STRIDED = 1 << 14
#: Strides of which compiled loops read whole vectors, in elements: an argument that has one may be
#: read where it is. Libraries copy others than the second kind.
STEPS_OF_LOOPS, STEPS_OF_PRODUCTS = (0, 1, 2, 3, 4), (1,)


def accepting(calls: Calls, strided: Sequence[Sequence[int]] = ()) -> Any:
    """``accept(args, trusted, dense)``: (shapes, inputs of the plan), or None to convert one.

    It is generated code for these arguments: a loop over them takes as long as a small kernel.
    An argument keeps its strides if it has one of its ``strided``, in elements; others are copied
    where they are not contiguous.
    """
    names = [f"a{i}" for i in range(len(calls.slots))]
    scope: dict[str, Any] = {"ndarray": np.ndarray, "numbers": (float, int, np.generic)}
    lines = ["def accept(args, trusted, dense):", f" if len(args) != {len(names)}: return None"]
    if names:
        lines.append(f" {', '.join(names)}, = args")
    for i, (a, slot) in enumerate(zip(names, calls.slots)):
        scope[f"d{i}"] = slot.dtype
        kept = ""
        if i < len(strided) and strided[i] and slot.dtype is not None:
            scope[f"s{i}"] = frozenset(k * slot.dtype.itemsize for k in strided[i])
            kept = f" and not ({a}.size >= {_MIN_STRIDED} and {a}.flags.aligned"
            kept += f" and not s{i}.isdisjoint({a}.strides))"
        lines += [
            f" if type({a}) is ndarray:",
            "  if not trusted:",
            f"   if {a}.dtype is not d{i} and {a}.dtype != d{i}: return None",
            f"   if not {a}.flags.c_contiguous{kept}: {a} = dense({a})",
        ]
        if slot.dtype is not None and slot.ndim == 0:
            scope[f"c{i}"] = _converter(slot, calls.allow_downcast)
            lines.append(f" elif isinstance({a}, numbers): {a} = c{i}({a})")
        lines.append(" else: return None")
    shapes = [f"{a}.shape" for a in names]
    key = shapes[0] if len(shapes) == 1 else f"({', '.join(shapes)})"
    lines.append(f" return {key}, [{', '.join(names)}]")
    # The text consists of numbers and the words above; it has nothing from the user.
    exec(compile("\n".join(lines), "<arguments>", "exec"), scope)
    return scope["accept"]


def _converter(slot: Any, allow_downcast: bool | None) -> Any:
    return lambda value: slot.convert(value, allow_downcast)
