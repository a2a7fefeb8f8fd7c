"""Ops of SciPy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from symdnn.graph.op import Op
from symdnn.ops.array.filters import LinearFilter
from symdnn.ops.lowered.lowered import Lowered

__all__ = ["ScipyFilter"]


@dataclass(frozen=True)
class ScipyFilter(Lowered):
    """A recursive filter. (``scipy.signal.lfilter``)"""

    neutral_type: ClassVar[type[Op]] = LinearFilter
    dtypes: ClassVar[tuple[str, ...]] = ("float64",)
    axis: int = 0
    reverse: bool = False
