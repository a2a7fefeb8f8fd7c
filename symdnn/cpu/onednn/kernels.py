"""All oneDNN kernels. The library is loaded when one of them is first queried.

Where they refuse a call, kernels of the neutral op are the fallback.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from symdnn.cpu.launch.traits import PYTHON
from symdnn.cpu.onednn import conv as onednn_conv
from symdnn.cpu.onednn import matmul as onednn_matmul
from symdnn.cpu.onednn import norm as onednn_norm
from symdnn.cpu.onednn import pool as onednn_pool
from symdnn.cpu.onednn import quantized as onednn_quantized
from symdnn.graph.kernel import Call, Row
from symdnn.graph.substitute import Substitute
from symdnn.ops.vendor.onednn import OneDnnBase


def in_neutral_form(call: Call) -> Call | str:
    """The call with the neutral op, or why there is none: it has no NHWC layout and no epilogue."""
    op: Any = call.op
    if op.layout != "NCHW" or not getattr(op, "is_plain", True):
        return "the neutral op has no such layout or epilogue"
    return replace(call, op=op.op)


KERNELS: tuple[Row, ...] = (
    *onednn_conv.KERNELS,
    *onednn_matmul.KERNELS,
    *onednn_norm.KERNELS,
    *onednn_pool.KERNELS,
    *onednn_quantized.KERNELS,
    ((OneDnnBase,), (Substitute(in_neutral_form, "cpu", traits=PYTHON, lends_name=True),)),
)
