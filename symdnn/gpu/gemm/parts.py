"""Parts of a product's sums, which a kernel adds in an order that never varies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from symdnn.gpu.codegen.device_source import specialised
from symdnn.gpu.codegen.launches import KernelLaunch, blocks_for
from symdnn.gpu.gemm.plan import Matrix

if TYPE_CHECKING:
    from symdnn.gpu.device.env import LaunchEnv

_THREADS = 256
#: Results below which threads that each add all parts of one would leave a large card idle, and the
#: parts from which on several threads share them.
_FEW_RESULTS, _MANY_PARTS, _SHARING = 1 << 16, 16, 8


@dataclass(frozen=True)
class Adding:
    """``y = alpha times the sum of parts + beta z``, in float32.

    Parts are (parts, columns, stack, rows); ``d`` is y, and ``c`` is z.
    """

    parts: int
    stack: int
    d: Matrix
    c: Matrix

    @property
    def size(self) -> int:
        """The number of results."""
        return self.d.rows * self.d.columns * self.stack

    @property
    def _groups(self) -> int:
        return _SHARING if self.size < _FEW_RESULTS and self.parts >= _MANY_PARTS else 1

    @property
    def source(self) -> str:
        """The kernel."""
        return specialised("add_parts.cu", GROUPS=self._groups)

    def enqueue(
        self, env: LaunchEnv, where: tuple[int, int, int], factors: Sequence[float]
    ) -> None:
        """Enqueue it for the addresses of the parts, of y and of z."""
        d, c, (alpha, beta) = self.d, self.c, factors
        sizes = (d.rows, self.stack, d.columns, d.ld, d.batch_offset, c.ld, c.batch_offset)
        grid = (blocks_for(self.size * self._groups, _THREADS),)
        parameters = (*where, self.parts, *sizes, float(alpha), float(beta))
        launched(env, self.source, "add_parts", grid, (_THREADS,), parameters)


def launched(
    env: LaunchEnv, source: str, name: str, grid: tuple[int, ...], block: tuple[int, ...],
    parameters: tuple[Any, ...],
) -> None:  # fmt: skip
    """Enqueue a kernel whose parameters are known."""
    KernelLaunch(source, name, grid, block, parameters).enqueue(env, np.zeros(1, np.int64))
