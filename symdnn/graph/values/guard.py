"""Guarded runs: which bits of a floating value count as a fault, and the node of a check."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from symdnn.graph.op import Op
from symdnn.graph.origin import NO_HINTS, NOWHERE
from symdnn.graph.type import TensorType, Type, numpy_dtype
from symdnn.graph.typing import Array
from symdnn.graph.variable import Apply, Constant, Variable

#: The magnitude above which a value counts as big.
BIG_MAGNITUDE = 1e10
#: What a check says that finds a fault, whose kind it does not know.
FAULT = "there is a NaN, an infinity or a very large value"
#: Values whose bits without the sign are ``first`` to ``first + count - 1``.
Range = tuple[int, int]
_PARTS = {"complex64": "float32", "complex128": "float64"}
_FRACTION_BITS = {"float16": 10, "bfloat16": 7, "float32": 23, "float64": 52}


@dataclass(frozen=True)
class ValueGuard:
    """Which floating values are faults: NaN, infinities, magnitudes above :data:`BIG_MAGNITUDE`.

    Of a complex number both parts are checked. Integers, bools and opaque values have no faults.
    """

    nan: bool = True
    inf: bool = True
    big: bool = True

    def of(self, v: Variable) -> ValueGuard:
        """The faults of the elements of ``v``: those that the program itself fills in are none."""
        if not v.owner:
            return self
        faults = [f for a in _filled_in(v) for f in _FAULTS if getattr(self, f) and _has(a, f)]
        return replace(self, **dict.fromkeys(faults, False)) if faults else self

    def watches(self, type_: Type) -> bool:
        """Whether values of a type are checked."""
        return isinstance(type_, TensorType) and bool(self.ranges(type_.dtype))

    def ranges(self, dtype: str) -> tuple[Range, ...]:
        """The faults of a dtype, in ascending order; ranges that touch are one."""
        return _ranges(self, part_dtype(dtype))

    def is_faulty(self, value: object) -> bool:
        """Whether an array has a fault, by NumPy."""
        a = np.ascontiguousarray(value)
        part = part_dtype(a.dtype.name)
        bits = a.reshape(-1).view(f"u{numpy_dtype(part).itemsize}")
        magnitude = bits & bits.dtype.type((1 << (8 * bits.itemsize - 1)) - 1)
        kind = bits.dtype.type
        with np.errstate(over="ignore"):
            return any(
                bool((magnitude - kind(first) < kind(count)).any())
                for first, count in self.ranges(a.dtype.name)
            )

    def node(self, v: Variable) -> Apply:
        """The node of the check of ``v``, with the origin of the node that makes it."""
        made_by = v.owner
        text = f"the check of {v if made_by is None else made_by.op}"
        origin = NOWHERE if made_by is None else made_by.origin
        return Apply(FaultCheck(text), [v], [], origin, NO_HINTS, (0,))

    def checked(self, node: Apply) -> list[Variable]:
        """The outputs of a node that a guarded run checks: not those with an input's elements,
        those on their way, nor what is filled with constants."""
        if node.op.in_flight or of_constants(node):
            return []
        same = node.op.views
        return [v for v in node.outputs if v.index not in same and self.of(v).watches(v.type)]


_FAULTS = ("nan", "inf", "big")


def _has(a: Array, fault: str) -> bool:
    """Whether a constant has this fault."""
    return ValueGuard(**{f: f == fault for f in _FAULTS}).is_faulty(a)


def _filled_in(v: Variable) -> Iterator[Array]:
    """Floating constants whose elements may be among those of ``v``, unchanged."""
    waiting, seen = [v], {v}
    while waiting:
        v = waiting.pop()
        if isinstance(v, Constant):
            if isinstance(v.type, TensorType) and not v.type.is_discrete:
                yield v.data
        elif v.owner and v.index is not None:
            op, inputs = v.owner.op, v.owner.inputs
            view = op.views.get(v.index)
            more = op.chosen_from(inputs, v.index) if view is None else [inputs[view]]
            waiting += [w for w in more if w not in seen]
            seen.update(more)


def of_constants(node: Apply) -> bool:
    """Whether all numbers that a node reads are constants, and sizes beside them: an infinity in
    its result is one that the program wrote, such as the maximum of no elements."""
    numbers = [v for v in node.inputs if isinstance(v.type, TensorType) and not v.type.is_discrete]
    return bool(numbers) and all(isinstance(v, Constant) for v in numbers)


@dataclass(frozen=True)
class FaultCheck(Op):
    """The check of a value in a plan: it has no result. It is in no graph."""

    text: str

    def output_types(self, inputs: Sequence[Type]) -> tuple[Type, ...]:
        """None."""
        return ()

    def __str__(self) -> str:
        return self.text


def part_dtype(dtype: str) -> str:
    """The dtype itself; of a complex one that of its parts."""
    return _PARTS.get(dtype, dtype)


@cache
def _ranges(guard: ValueGuard, dtype: str) -> tuple[Range, ...]:
    fraction = _FRACTION_BITS.get(dtype)
    if fraction is None:
        return ()
    width = 8 * numpy_dtype(dtype).itemsize
    infinity = ((1 << (width - 1 - fraction)) - 1) << fraction
    big = min(_first_above(BIG_MAGNITUDE, dtype), infinity)
    wanted = [
        (big, infinity, guard.big), (infinity, infinity + 1, guard.inf),
        (infinity + 1, 1 << (width - 1), guard.nan),
    ]  # fmt: skip
    found: list[Range] = []
    for low, high, on in wanted:
        if not on or low == high:
            continue
        if found and sum(found[-1]) == low:
            low = found.pop()[0]
        found.append((low, high - low))
    return tuple(found)


def _first_above(limit: float, dtype: str) -> int:
    """The bits of the smallest value of ``dtype`` above ``limit``."""
    with np.errstate(over="ignore"):
        nearest = np.asarray(limit).astype(numpy_dtype(dtype))
    bits = int(nearest.view(f"u{nearest.itemsize}"))
    return bits if float(nearest) > limit else bits + 1
