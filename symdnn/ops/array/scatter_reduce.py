"""Extremes and products of values that index arrays send to the elements of an array."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from symdnn.errors import OptionError, TypeMismatch
from symdnn.graph.op import Grads, Vars
from symdnn.graph.operators import operator, or_zeros
from symdnn.graph.type import TensorType
from symdnn.graph.typing import Array
from symdnn.graph.variable import Variable
from symdnn.ops.array.advanced_index import AdvancedIncrement, AdvancedIncSubtensor
from symdnn.ops.core.dtype import is_narrow_float
from symdnn.ops.elemwise import unbroadcast

#: NumPy's functions of the reductions.
REDUCTIONS: dict[str, Any] = {"max": np.maximum, "min": np.minimum, "mul": np.multiply}


@dataclass(frozen=True)
class ScatterReduce(AdvancedIncrement):
    """``x`` with ``y`` combined with the elements that index arrays select.

    Inputs as of :class:`AdvancedIncSubtensor`. ``reduce`` is ``"max"``, ``"min"`` (NaN stays) or
    ``"mul"``; values for one element are all combined, in any order. Elements that are equal to the
    extreme share its gradient equally, as in PyTorch; the one of a factor is the product of
    the others.
    """

    reduce: str = "max"

    def infer(self, x: TensorType, y: TensorType, *rest: TensorType) -> TensorType:
        if self.reduce not in REDUCTIONS:
            raise OptionError(f"{self}: wanted one of {', '.join(REDUCTIONS)}")
        if x.is_complex or (x.dtype == "bool" and self.reduce == "mul"):
            raise TypeMismatch(self, "real numbers", x)
        return super().infer(x, y, *rest)

    def reference(self, x: Array, y: Array, *rest: Array) -> Array:
        work = np.dtype(np.float32) if is_narrow_float(x.dtype.name) else x.dtype
        out = np.array(x, work, copy=True)
        index = self.getter().numpy_index(out.shape, rest)
        with np.errstate(all="ignore"):
            REDUCTIONS[self.reduce].at(out, index, y.astype(work, copy=False))
        return out.astype(x.dtype, copy=False)

    def _shares(self, inputs: Vars, output: Variable) -> tuple[Variable, Variable]:
        """What an element of ``x``, and one of ``y``, adds to the result for a unit of its own."""
        x, y, *rest = inputs
        if self.reduce == "mul":
            return self._others(x, y, rest)
        read, dtype = self.getter(), x.type.dtype
        eq, cast = operator("eq"), operator("cast")
        mine, theirs = cast(eq(x, output), dtype), cast(eq(y, read(output, *rest)), dtype)
        count = AdvancedIncSubtensor(self.index)(mine, theirs, *rest)
        count = operator("maximum")(count, np.ones((), dtype))  # 0 beside NaN
        return mine / count, theirs / read(count, *rest)

    def _others(self, x: Variable, y: Variable, rest: Vars) -> tuple[Variable, Variable]:
        """The product of all other factors. With one 0 it is that of the others for this one."""
        read, switch, eq = self.getter(), operator("switch"), operator("eq")
        one, none = np.ones((), x.type.dtype), np.zeros((), x.type.dtype)
        zeros = [operator("cast")(eq(v, none), x.type.dtype) for v in (x, y)]
        count = AdvancedIncSubtensor(self.index)(*zeros, *rest)
        x1, y1 = (switch(eq(v, none), one, v) for v in (x, y))
        whole = self(x1, y1, *rest)

        def share(v: Variable, own: Variable, zero: Variable, at: Callable[[Any], Any]) -> Variable:
            return switch(eq(at(count), zero), at(whole) / v, none)

        def here(v: Variable) -> Variable:
            return v

        def there(v: Variable) -> Variable:
            return read(v, *rest)

        return share(x1, x, zeros[0], here), share(y1, y, zeros[1], there)

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Vars) -> Grads:
        (_, y, *rest), (dz,) = inputs, cotangents
        mine, theirs = self._shares(inputs, outputs[0])
        dy = unbroadcast(theirs * self.getter()(dz, *rest), y)
        return [mine * dz, dy, *(None for _ in rest)]

    def jvp(self, inputs: Vars, outputs: Vars, tangents: Grads) -> Grads | None:
        x, y, *rest = inputs
        mine, theirs = self._shares(inputs, outputs[0])
        part = self.getter()(x, *rest)
        dx, dy = or_zeros(tangents[:2], (x, y))
        add = AdvancedIncSubtensor(self.index)
        return [add(mine * dx, theirs * dy + operator("zeros_like")(part), *rest)]

    def __str__(self) -> str:
        return super().__str__().replace("{inc", f"{{{self.reduce}")


def identity_of(reduce: str, dtype: str) -> Any:
    """What changes nothing: the number with which a reduction of this dtype begins."""
    t = TensorType(dtype)
    if reduce == "mul":
        return np.ones((), t.numpy)
    if t.is_float:
        return np.asarray(np.inf if reduce == "min" else -np.inf).astype(t.numpy)
    if dtype == "bool":
        return np.asarray(reduce == "min")
    if t.is_complex:
        raise TypeMismatch(f"a reduction by {reduce}", "real numbers", t)
    info = np.iinfo(t.numpy)
    return np.asarray(info.max if reduce == "min" else info.min, t.numpy)
