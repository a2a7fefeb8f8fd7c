"""What SciPy can run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from symdnn.graph.op import Op
from symdnn.ops.lowered.lowered import Lowered
from symdnn.ops.nn.softmax import LogSoftmax

__all__ = ["ScipyLogSoftmax"]


@dataclass(frozen=True)
class ScipyLogSoftmax(Lowered):
    """Log-softmax along an axis. (``scipy.special.log_softmax``)"""

    neutral_type: ClassVar[type[Op]] = LogSoftmax
    dtypes: ClassVar[tuple[str, ...]] = ("float32", "float64")
    axis: int = 1
