"""Powers of integers that cannot fail, for code that cannot raise."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from symdnn.graph.typing import Array
from symdnn.ops.core.scalar import Scalar
from symdnn.ops.elementwise.arithmetic import Pow


def _power(x: Array, y: Array) -> Array:
    return np.where(y < 0, 0, np.power(x, np.maximum(y, 0))).astype(x.dtype)


def _formula(x: Scalar, y: Scalar) -> Scalar:
    return (y < 0).where(x.like(0), x.call("pow", y.call("max", 0)))


class NaturalPow(Pow):
    """``x ** y`` of integers ``y`` that are not negative; 0 for one that is."""

    kinds: ClassVar[str] = "bi"
    function: ClassVar[Any] = _power
    formula: ClassVar[Any] = staticmethod(_formula)
