"""Generated kernels that run ops of oneDNN where they are faster: pooling in NCHW, layer norms.

Measured with AVX-512: oneDNN's pooling in NCHW is 3 to 15 times slower (it is made for NHWC). On
one core of Zen 5 its layer norm takes 1.5 times as long for 8 rows of 128000, 1.1 times for 64 of
50257, and 0.7 times for short rows; its gradient 1.5, 1.1, 1.7 times for 4096 of 512, as long for
shorter rows, and 0.8 times for 1024 of 4096. Zen 4 adds float64 in halves of vectors: there
oneDNN's gradient takes 1.4 times as long for 4096 of 256, 1.3 for 64 of 384, and 0.5 to 0.8 times
from rows of 512 on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod
from typing import Any

from symdnn.cpu.compiler import jit
from symdnn.cpu.nest.norms import NormGradKernel, NormKernel
from symdnn.cpu.pool.pool import PoolKernel
from symdnn.graph.kernel import Call, Kernel, Row
from symdnn.graph.substitute import Substitute
from symdnn.ops.vendor.onednn import (
    OneDnnLayerNorm,
    OneDnnLayerNormGrad,
    OneDnnPool,
    OneDnnPoolGrad,
)

__all__ = ["KERNELS"]


#: Rows of a layer norm of which the generated kernels are faster; of which also the gradient is,
#: and where the processor computes in halves of its vectors.
_MIN_NORM_LENGTH, _MAX_LENGTH_OF_GRADIENT, _MAX_LENGTH_OF_HALVES = 1 << 14, 1 << 11, 384

#: With fewer elements a call of oneDNN, some 10 us from Python, takes longer than it saves: on one
#: core of Zen 4 generated code takes 0.26 of the time for 16 rows of 512, 0.9 for 128 of 768.
_MIN_NORM_ELEMENTS = 1 << 17


def _short_rows(call: Call) -> str | None:
    out = call.outputs[0]
    short = out.is_static and out.shape[-1] < _MIN_NORM_LENGTH
    short = short and prod(out.shape) >= _MIN_NORM_ELEMENTS
    return "oneDNN is as fast for rows of that length" if short else None


def _long_rows(call: Call) -> str | None:
    out = call.outputs[0]
    longest = _MAX_LENGTH_OF_HALVES if jit.halves_vectors() else _MAX_LENGTH_OF_GRADIENT
    fine = out.is_static and out.shape[-1] <= longest
    return None if fine else _short_rows(call)


def _generated(kernel: Kernel, refuses: Callable[[Call], str | None] | None = None) -> Substitute:
    """A kernel of the neutral op, run for the oneDNN op in NCHW, unless there is a reason."""

    def rewritten(call: Call) -> Call | str:
        op: Any = call.op
        if op.layout != "NCHW":
            return f"it is for the layout NCHW, not {op.layout}"
        reason = refuses(call) if refuses else None
        return reason or replace(call, op=op.op)

    return Substitute(rewritten, "cpu", (kernel,), kernel.name, kernel.traits)


KERNELS: tuple[Row, ...] = (
    ((OneDnnPool, OneDnnPoolGrad), (_generated(PoolKernel()),)),
    ((OneDnnLayerNorm,), (_generated(NormKernel(), _short_rows),)),
    ((OneDnnLayerNormGrad,), (_generated(NormGradKernel(), _long_rows),)),
)
