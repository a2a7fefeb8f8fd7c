"""Copies of arrays into another layout: :class:`~symdnn.ops.nn.channels_last.Reorder`.

They are copies of a transposed view, in blocks that are turned in registers: faster than oneDNN's
reorders, which take bfloat16 one number at a time without AVX-512.
"""

from __future__ import annotations

from typing import Any

from symdnn.cpu.elementwise.elementwise import elementwise_launch
from symdnn.cpu.ir.scalar_ir import VALUES
from symdnn.cpu.launch.contiguous_launch import compiler_refusal
from symdnn.cpu.launch.fastcall import FastCall
from symdnn.cpu.launch.launch import CpuLaunch
from symdnn.cpu.launch.traits import LLVM_ASKS_THREADS
from symdnn.graph.kernel import Call, Kernel, Row
from symdnn.graph.typing import Arrays
from symdnn.ops.core.scalar import identity_program
from symdnn.ops.nn.channels_last import Reorder

__all__ = ["KERNELS", "ReorderKernel"]


class ReorderKernel(Kernel[Reorder]):
    """A copy with permuted dimensions."""

    name = "llvm.reorder"
    traits = LLVM_ASKS_THREADS

    def refuses(self, call: Call[Reorder]) -> str | None:
        """Needs code for the dtype, and elements."""
        x = call.inputs[0]
        if x.dtype not in VALUES:
            return "there is no code for these dtypes"
        if x.is_static and 0 in x.shape:
            return "it is empty"
        return compiler_refusal()

    def bind(self, call: Call[Reorder]) -> CpuLaunch:
        """A launch for any strides."""
        return _CopyLaunch(call.inputs[0], call.op.order)


class _CopyLaunch(CpuLaunch):
    """``launch(inputs, outputs)`` of a copy."""

    def __init__(self, x: Any, order: tuple[int, ...]) -> None:
        self._order = order
        shape = tuple(x.shape[d] for d in order)
        self._launch = elementwise_launch(identity_program(x.dtype), shape)

    def __call__(self, inputs: Arrays, outputs: Arrays) -> None:
        """Copy every element."""
        self._launch([inputs[0].transpose(self._order)], outputs)

    def native(self, inputs: Arrays, outputs: Arrays) -> FastCall:
        """For operands with these strides; the transposed view has the array's data pointer."""
        return self._launch.native([inputs[0].transpose(self._order)], outputs)


KERNELS: tuple[Row, ...] = (((Reorder,), (ReorderKernel(),)),)
