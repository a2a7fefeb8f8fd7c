"""Copies: an array filled, arrays joined and split, a part of one changed, rows picked by number.

What NumPy's references make in memory of their own goes into the plan's buffers straight away, and
with several threads where there is much of it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from functools import cache
from math import prod
from typing import Any

import numpy as np

from symdnn.cpu.elementwise.elementwise import Reordered, launcher
from symdnn.cpu.elementwise.gather_ir import FLAG, gather_ir
from symdnn.cpu.ir.scalar_ir import VALUES
from symdnn.cpu.launch.contiguous_launch import uncompiled
from symdnn.cpu.launch.fastcall import Native
from symdnn.cpu.launch.launch import CpuLaunch
from symdnn.cpu.launch.traits import LLVM, LLVM_ASKING, NUMPY
from symdnn.cpu.threads import threads
from symdnn.graph.kernel import Call, Kernel, Launch, Row
from symdnn.ops.array.advanced_index import AdvancedSubtensor
from symdnn.ops.array.index import IncSubtensor, Subtensor
from symdnn.ops.array.join import Join, Split
from symdnn.ops.core.scalar import Builder, ScalarProgram, identity_program
from symdnn.ops.core.shape import Alloc

__all__ = ["FillKernel", "GatherKernel", "MoveKernel", "KERNELS"]

#: Below so many elements NumPy's copies are as fast, and need no compiling.
_LEAST_WORK = 1 << 14
#: Elements for which another thread is worth waking.
_WORK_OF_A_THREAD = 1 << 15
_ALL = (None, None, None)
_Words = ctypes.c_int64


def _uncompiled(types: Sequence[Any], least: int = _LEAST_WORK) -> str | None:
    """Why no code is compiled for what the first of these types has elements of."""
    if any(t.dtype not in VALUES for t in types):
        return "there is no code for the dtype"
    return uncompiled(types[:1], lambda: prod(types[0].shape), least)


class FillKernel(Kernel):
    """``Alloc``: one pass over the result, by NumPy or, where there is much to do, compiled."""

    def __init__(self, compiled: bool) -> None:
        self.name, self._compiled = ("llvm.fill" if compiled else "numpy.fill"), compiled
        self.traits = LLVM_ASKING if compiled else NUMPY

    def refuses(self, call: Call) -> str | None:
        """Takes every call, compiled those of some size."""
        return _uncompiled(call.outputs) if self._compiled else None

    def bind(self, call: Call) -> Launch:
        """A copy of what is broadcast."""
        if not self._compiled:
            return _fill
        y: Any = call.outputs[0]
        return Reordered(launcher(identity_program(y.dtype), tuple(y.shape)), (0,))


def _fill(inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
    np.copyto(outputs[0], inputs[0])


# -- parts ----------------------------------------------------------------------------------------


class MoveKernel(Kernel):
    """``Join``, ``Split`` and ``IncSubtensor``: pieces of arrays, each copied once."""

    def __init__(self, compiled: bool) -> None:
        self.name, self._compiled = ("llvm.move" if compiled else "numpy.move"), compiled
        self.traits = LLVM if compiled else NUMPY

    def refuses(self, call: Call) -> str | None:
        """Takes every call, compiled those of some size."""
        if not self._compiled:
            return None
        whole = call.inputs if isinstance(call.op, Split) else call.outputs
        return _uncompiled(whole[:1])

    def bind(self, call: Call) -> Launch:
        """What moves the pieces."""
        op: Any = call.op
        if isinstance(op, Join):
            return _Pieces(op.axis, self._compiled)
        if isinstance(op, Split):
            return _Pieces(op.axis, self._compiled, split=True)
        return _Change(op, self._compiled)


class _Copies:
    """Copies, and sums in place, by NumPy or compiled: launches are kept by shapes."""

    def __init__(self, compiled: bool) -> None:
        self._compiled = compiled
        self._launches: dict[Any, Any] = {}

    def copy(self, source: Any, target: Any) -> None:
        """``target[...] = source``"""
        if self._compiled and target.size:
            run = self._launch(identity_program(target.dtype.name), source, target)
            run([source], [target])
        else:
            np.copyto(target, source)

    def add(self, source: Any, target: Any) -> None:
        """``target += source``"""
        if self._compiled and target.size:
            run = self._launch(_sum(target.dtype.name), source, target)
            run([target, source], [target])
        else:
            np.add(target, source, out=target)

    def _launch(self, program: ScalarProgram, source: Any, target: Any) -> Any:
        key = program, source.shape, target.shape
        if key not in self._launches:
            self._launches[key] = launcher(program, target.shape)
        return self._launches[key]


@cache
def _sum(dtype: str) -> ScalarProgram:
    b = Builder([dtype, dtype])
    if dtype not in ("float16", "bfloat16"):
        return b.program([b.input(0) + b.input(1)])
    wide = b.cast(b.input(0), "float32") + b.cast(b.input(1), "float32")
    return b.program([b.cast(wide, dtype)])


class _Pieces:
    """``launch(inputs, outputs)`` of a join or a split."""

    def __init__(self, axis: int, compiled: bool, split: bool = False) -> None:
        self._axis, self._split, self._copies = axis, split, _Copies(compiled)

    def __call__(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Copy every piece."""
        whole, pieces = (inputs[0], outputs) if self._split else (outputs[0], inputs)
        for piece, part in zip(pieces, _parts(whole, pieces, self._axis)):
            if self._split:
                self._copies.copy(part, piece)
            else:
                self._copies.copy(piece, part)


def _parts(whole: Any, pieces: Sequence[Any], axis: int) -> Iterator[Any]:
    """Views of where the pieces lie in the whole."""
    before, at = (slice(None),) * axis, 0
    for p in pieces:
        yield whole[(*before, slice(at, at + p.shape[axis]))]
        at += p.shape[axis]


class _Change:
    """``launch(inputs, outputs)`` of an op that adds to a part, or sets it."""

    def __init__(self, op: IncSubtensor, compiled: bool) -> None:
        self._part, self._sets = Subtensor(op.index), op.set_instead_of_inc
        self._copies = _Copies(compiled)

    def __call__(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Copy ``x`` where the result has memory of its own, change the part."""
        (x, y, *bounds), (out,) = inputs, outputs
        self._part.reference(x, *bounds)  # an index out of range is an error before any write
        if not _same(x, out):
            self._copies.copy(x, out)
        part = self._part.reference(out, *bounds)
        (self._copies.copy if self._sets else self._copies.add)(y, part)


def _same(a: Any, b: Any) -> bool:
    """Whether they are the same elements of memory."""
    places = (a.__array_interface__["data"][0], b.__array_interface__["data"][0])
    return bool(a.strides == b.strides and places[0] == places[1])


# -- rows -----------------------------------------------------------------------------------------


class GatherKernel(Kernel):
    """``x[index]`` for one index array of the first dimension: an embedding."""

    name = "llvm.gather"
    traits = LLVM

    def refuses(self, call: Call) -> str | None:
        """Takes whole rows by int32 and int64."""
        op: Any = call.op
        if op.index[0] != "a" or any(e != _ALL for e in op.index[1:]):
            return "it takes whole rows"
        if call.inputs[1].dtype not in ("int32", "int64"):
            return "it takes rows by int32 and int64"
        return _uncompiled(call.outputs, 1 << 10)

    def bind(self, call: Call) -> Launch:
        """Compiled for any sizes."""
        return _Gather(call)


class _Gather(CpuLaunch):
    """``launch(inputs, outputs)``; a number out of range is an error."""

    def __init__(self, call: Call) -> None:
        x, index = call.inputs[:2]
        y: Any = call.outputs[0]
        self._op: Any = call.op
        self._run = threads.kernel(gather_ir, index.dtype)
        length = prod(x.shape[1:])
        count = threads.threads(prod(y.shape), _WORK_OF_A_THREAD)
        rows = prod(y.shape) // max(length, 1)
        words = [count, rows, 1, length * x.numpy.itemsize, x.shape[0], 0, 0, 0, 0]
        self._words = (_Words * len(words))(*words)

    def __call__(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Copy every row."""
        x, index = inputs[:2]
        (out,) = outputs
        if not (x.flags.c_contiguous and out.flags.c_contiguous):
            np.copyto(out, self._op.reference(*inputs))
            return
        words, index = self._words, np.ascontiguousarray(index)
        words[FLAG + 1 : FLAG + 4] = [id(x), id(index), id(out)]
        self._run(words)
        if words[FLAG]:
            words[FLAG] = 0
            self._op.numpy_index(x.shape, inputs[1:])

    def native(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> Native | None:
        """For operands in C order; a number out of range stops it."""
        if not all(a.flags.c_contiguous for a in (*inputs, *outputs)):
            return None
        return Native.of(self._run, self._words, range(FLAG + 1, FLAG + 4), status=FLAG)


KERNELS: tuple[Row, ...] = (
    ((Alloc,), (FillKernel(True), FillKernel(False))),
    ((Join, Split, IncSubtensor), (MoveKernel(True), MoveKernel(False))),
    ((AdvancedSubtensor,), (GatherKernel(),)),
)
