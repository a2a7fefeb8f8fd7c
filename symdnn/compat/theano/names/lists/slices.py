"""Theano's slices as variables: ``SliceType`` and ``make_slice``, for items of lists."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from symdnn import tensor as T
from symdnn.errors import InputError, TypeMismatch
from symdnn.graph.type import TensorType, Type
from symdnn.graph.values.structured import Form, Structured
from symdnn.graph.variable import Variable, as_variable

__all__ = ["MakeSlice", "SliceConstant", "SliceType", "SliceVariable", "make_slice", "slicetype"]

#: What stands for None in a slice's parts.
_NONE = np.iinfo("int64").min


class SliceType(Type):
    """The type of Python's slices; calling it makes a variable."""

    def __call__(self, name: str | None = None) -> SliceVariable:
        """A slice as an input."""
        labels = [f"{name}.{n}" if name else None for n in SliceForm.names]
        return SliceVariable([Variable(TensorType("int64", ()), n) for n in labels], name)

    make_variable = __call__

    def filter(self, x: object, strict: bool = False, allow_downcast: bool | None = None) -> slice:
        """The slice itself. Raises ``TypeError`` for another value."""
        if not isinstance(x, slice):
            raise InputError(f"SliceType: wanted a slice, got {x!r:.60}")
        return x

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SliceType)

    def __hash__(self) -> int:
        return hash(SliceType)

    def __str__(self) -> str:
        return "slice"


slicetype = SliceType()


@dataclass(frozen=True)
class SliceForm(Form):
    """A slice as its start, stop and step."""

    names = ("start", "stop", "step")

    @property
    def labels(self) -> tuple[str, ...]:
        return self.names

    def split(self, value: object, what: str) -> Sequence[Any]:
        if not isinstance(value, slice):
            raise InputError(f"{what}: wanted a slice, got a {type(value).__name__}")
        return [np.int64(_NONE if p is None else p) for p in (value.start, value.stop, value.step)]

    def join(self, parts: Sequence[Any]) -> slice:
        return slice(*(None if int(p) == _NONE else int(p) for p in parts))


class SliceVariable(Structured):
    """A slice whose bounds are known when the function runs."""

    type = slicetype

    def __init__(self, parts: Sequence[Variable], name: str | None = None) -> None:
        self._parts, self.name = tuple(parts), name

    @property
    def form(self) -> SliceForm:
        return SliceForm()

    @property
    def parts(self) -> tuple[Variable, ...]:
        return self._parts

    @property
    def differentiable(self) -> Variable:
        raise TypeMismatch("grad", "an array", "a slice")

    def with_gradient(self, gradient: Variable) -> Self:
        raise TypeMismatch("grad", "an array", "a slice")

    def fitting(self, new: object, what: str) -> SliceVariable:
        if not isinstance(new, slice | SliceVariable):
            raise TypeMismatch(what, "a slice", new)
        return new if isinstance(new, SliceVariable) else make_slice(new)

    def __str__(self) -> str:
        return self.name or "slice"

    def of(self, length: Variable) -> Variable:
        """The places that it chooses of so many."""
        start, stop, step = self._parts
        step = T.switch(T.eq(step, _NONE), 1, step)
        low = T.switch(step > 0, 0, -1)
        high = T.switch(step > 0, length, length - 1)
        first, last = (T.clip(T.switch(v < 0, v + length, v), low, high) for v in (start, stop))
        first = T.switch(T.eq(start, _NONE), T.switch(step > 0, low, high), first)
        last = T.switch(T.eq(stop, _NONE), T.switch(step > 0, high, low), last)
        return T.cast(T.arange(first, last, step), "int64")


class MakeSlice:
    """Theano's op that makes a slice of its bounds."""

    def __call__(self, slc: Any, stop: Any = None, step: Any = None) -> SliceVariable:
        """A slice of Python's, or of bounds, any of which may be a variable."""
        given = (slc.start, slc.stop, slc.step) if isinstance(slc, slice) else (slc, stop, step)
        parts = [T.cast(as_variable(_NONE if p is None else p), "int64") for p in given]
        return SliceVariable(parts)


make_slice = MakeSlice()


def SliceConstant(type: SliceType, data: slice, name: str | None = None) -> SliceVariable:
    """A slice whose bounds are known."""
    return make_slice(type.filter(data))
