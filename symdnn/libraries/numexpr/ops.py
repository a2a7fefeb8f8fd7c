"""The ops that numexpr runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from symdnn.graph.op import Op
from symdnn.ops.elementwise.math import Log1p
from symdnn.ops.lowered.lowered import Lowered

__all__ = ["NumexprLog1p"]


@dataclass(frozen=True)
class NumexprLog1p(Lowered):
    """``log(1 + x)``. (``numexpr.evaluate``)"""

    neutral_type: ClassVar[type[Op]] = Log1p
    dtypes: ClassVar[tuple[str, ...]] = ("float32", "float64")
