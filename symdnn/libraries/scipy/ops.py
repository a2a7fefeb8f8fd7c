"""What SciPy can run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from symdnn.graph.op import Op
from symdnn.ops.lowered.lowered import Lowered
from symdnn.ops.nn.softmax import Softmax

__all__ = ["ScipySoftmax"]


@dataclass(frozen=True)
class ScipySoftmax(Lowered):
    """Softmax along an axis. (``scipy.special.softmax``)"""

    neutral_type: ClassVar[type[Op]] = Softmax
    dtypes: ClassVar[tuple[str, ...]] = ("float32", "float64")
    axis: int = 1
