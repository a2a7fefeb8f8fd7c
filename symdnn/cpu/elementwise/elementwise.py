"""Elementwise ops, single and fused, by compiled loops (:mod:`symdnn.cpu.ir.loops_ir`)."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from symdnn.config import config
from symdnn.cpu.compiler import jit
from symdnn.cpu.ir.loops_ir import Operand, elementwise_ir, inner
from symdnn.cpu.ir.scalar_ir import VALUES, prints
from symdnn.cpu.launch.fastcall import Native
from symdnn.cpu.launch.launch import CpuLaunch
from symdnn.cpu.launch.traits import LLVM_ASKING
from symdnn.cpu.reference.programs import ProgramKernel
from symdnn.cpu.threads import threads
from symdnn.graph.kernel import Call, Kernel, Row
from symdnn.graph.op import Op
from symdnn.graph.type import TensorType
from symdnn.graph.values.strides import merged
from symdnn.ops.core.scalar import ScalarProgram
from symdnn.ops.elementwise.scalar_meaning import meaning
from symdnn.ops.elemwise import Elemwise
from symdnn.ops.vendor.fused import FusedElemwise

__all__ = ["ElementwiseKernel", "Reordered", "launcher", "KERNELS"]

#: Below so many additions in all, compiling costs more than NumPy ever would.
_LEAST_WORK = 1 << 14
#: Additions for which another thread is worth waking.
_WORK_OF_A_THREAD = 1 << 16

_Words = ctypes.c_int64


class ElementwiseKernel(Kernel[Elemwise | FusedElemwise]):
    """An elementwise op by its scalar program, compiled by LLVM."""

    name = "llvm.elementwise"
    traits = LLVM_ASKING

    def refuses(self, call: Call[Elemwise | FusedElemwise]) -> str | None:
        """Needs a scalar program that can be compiled, and enough to do."""
        types: Any = (*call.inputs, *call.outputs)
        if not all(isinstance(t, TensorType) and t.dtype in VALUES for t in types):
            return "there is no code for these dtypes"
        program = self.program(call)
        if program is None:
            return f"{call.op} has no scalar program for these dtypes"
        if program.output_dtypes != tuple(t.dtype for t in call.outputs):
            return "flags that dtypes depend on have changed since the node was made"
        wish = str(config.cpu.compile)
        if wish == "never":
            return "cpu.compile=never"
        if wish == "auto" and all(t.is_static for t in types):
            work = prod(call.outputs[0].shape) * max(program.cost, 1)
            if work < _LEAST_WORK:
                return "it is too little to compile for"
        return prints(program) or jit.problem() or threads.problem() or None

    def fuses(self, op: Op) -> bool:
        """Whether ``opt`` may make this op of several."""
        wanted = str(config.cpu.compile) != "never" and jit.installed()
        return wanted and isinstance(op, FusedElemwise) and prints(op.program) is None

    def program(self, call: Call[Elemwise | FusedElemwise]) -> ScalarProgram | None:
        """The op's scalar program for the operands' dtypes."""
        if isinstance(call.op, FusedElemwise):
            return call.op.program
        return meaning(call.op, tuple(t.dtype for t in call.inputs))

    def writes_updates(self, call: Call[Elemwise | FusedElemwise]) -> bool:
        """It can write a shared variable: once compiled it never fails."""
        return True

    def bind(self, call: Call[Elemwise | FusedElemwise]) -> Any:
        """Compiled for the strides of the first launch, and for others as they come."""
        program = self.program(call)
        assert program is not None
        return _Launcher(program, tuple(call.outputs[0].shape))


class _Launcher(CpuLaunch):
    """``launch(inputs, outputs)``: blocks of parameters are kept by the operands' strides."""

    def __init__(self, program: ScalarProgram, shape: tuple[int, ...]) -> None:
        self._program, self._shape = program, shape
        self._blocks: dict[Any, _Block] = {}

    def __call__(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Compute every element."""
        self._block(inputs, outputs).run([*inputs, *outputs])

    def prepare(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Have the code made for operands that lie as these do."""
        self._block(inputs, outputs)

    def native(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> Native:
        """For operands that lie as these do."""
        return self._block(inputs, outputs).native()

    def _block(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> _Block:
        key = tuple([a.strides for a in (*inputs, *outputs)])
        block = self._blocks.get(key)
        if block is None:
            block = self._blocks[key] = _Block(self._program, self._shape, inputs, outputs)
        return block


def launcher(program: ScalarProgram, shape: tuple[int, ...]) -> Any:
    """A launch that applies a program to every element of results of a shape."""
    return _Launcher(program, shape)


class Reordered(CpuLaunch):
    """A launch of :func:`launcher`, whose input ``k`` is input ``order[k]`` of the call."""

    def __init__(self, launch: Any, order: Sequence[int]) -> None:
        self._launch, self._order = launch, tuple(order)

    def __call__(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Compute every element."""
        self._launch([inputs[k] for k in self._order], outputs)

    def prepare(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Have the code made for operands that lie as these do."""
        self._launch.prepare([inputs[k] for k in self._order], outputs)

    def native(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> Native:
        """For operands that lie as these do; inputs that are not read are none."""
        found: Native = self._launch.native([inputs[k] for k in self._order], outputs)
        at = [-1] * len(inputs)
        for place, k in zip(found.at, self._order):
            at[k] = place
        return replace(found, at=(*at, *found.at[len(self._order) :]))


class _Block:
    """A compiled loop and its parameters for operands of certain strides."""

    def __init__(
        self,
        program: ScalarProgram,
        shape: tuple[int, ...],
        inputs: Sequence[Any],
        outputs: Sequence[Any],
    ) -> None:
        read = [np.broadcast_to(a, shape) for a in inputs]
        arrays = [*read, *outputs]
        sizes, steps = merged(shape, [a.strides for a in arrays])
        operands = [
            Operand(a.dtype.name, inner(s[-1], a.itemsize, i >= len(read)))
            for i, (a, s) in enumerate(zip(arrays, steps))
        ]
        reads, writes = tuple(operands[: len(read)]), tuple(operands[len(read) :])
        self._run = threads.kernel(elementwise_ir, program, len(sizes), reads, writes)
        rows = prod(sizes[:-1])
        work = prod(sizes) * max(program.cost, 2)
        words = [threads.threads(work, _WORK_OF_A_THREAD), rows, sizes[-1], *sizes[1:-1]]
        self._at = []
        for step in steps:
            self._at.append(len(words))
            words += [0, step[-1], *step[:-1]]
        self._words = (_Words * len(words))(*words)

    def run(self, arrays: Sequence[Any]) -> None:
        """Say which arrays, run the loop."""
        words = self._words
        for at, a in zip(self._at, arrays):
            words[at] = id(a)
        self._run(words)

    def native(self) -> Native:
        """The loop as it is called from compiled code."""
        return Native.of(self._run, self._words, self._at)


KERNELS: tuple[Row, ...] = (
    ((Elemwise,), (ElementwiseKernel(),)),
    ((FusedElemwise,), (ElementwiseKernel(), ProgramKernel())),
)
